// Package head implements header pages: shared memory in which programs read, without asking the
// daemon, which version of an area their memory has, and in which they wait for a later one.
//
// Each user has a memfd of his own (Pages), so no program learns anything of another user's areas.
// It is a table of lines of 64 bytes; an area that programs of the user watch has a line there. The
// daemon writes the lines, and programs can only read them: a seal sees to that.
//
//	offset 0      the life line: its first word says whether the daemon lives
//	offset 64 n   a line, see Line
//
// A program waits in futex_waitv(2), for a change of its line's first word or of the life line's.
// Nothing counts the waiters: to wake nobody takes the daemon 0.3 us, and a count would have to be
// memory that programs write.
//
// # The life line
//
// A daemon that is killed cannot say so, but its kernel can: the life line is a robust futex
// (set_robust_list(2)) that a thread of the daemon has as long as it lives (Keeper). When the
// thread ends, for whatever reason, the kernel sets Died in the word and wakes one of those that
// wait. That one wakes the others.
package head
