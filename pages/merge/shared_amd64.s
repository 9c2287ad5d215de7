#include "textflag.h"

// func swapPairs(memory, base, other *uint64, n int) (done int)
TEXT ·swapPairs(SB), NOSPLIT, $0-40
	MOVQ memory+0(FP), DI
	MOVQ base+8(FP), SI
	MOVQ other+16(FP), R8
	MOVQ n+24(FP), R9
	XORQ R10, R10

pair:
	MOVQ (SI)(R10*8), AX
	MOVQ 8(SI)(R10*8), DX
	MOVQ (R8)(R10*8), BX
	MOVQ 8(R8)(R10*8), CX
	CMPQ AX, BX
	JNE  swap
	CMPQ DX, CX
	JEQ  next

swap:
	// A swap writes even if it fails.
	CMPQ AX, (DI)(R10*8)
	JNE  out
	CMPQ DX, 8(DI)(R10*8)
	JNE  out
	LOCK
	CMPXCHG16B (DI)(R10*8)
	JNE  out

next:
	ADDQ $2, R10
	CMPQ R10, R9
	JLT  pair

out:
	MOVQ R10, done+32(FP)
	RET
