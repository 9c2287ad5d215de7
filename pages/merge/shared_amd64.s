#include "textflag.h"

// func swapPairs(memory, base, other *uint64, from, to int, note *uint64) (done int)
TEXT ·swapPairs(SB), NOSPLIT, $0-56
	MOVQ memory+0(FP), DI
	MOVQ base+8(FP), SI
	MOVQ other+16(FP), R8
	MOVQ from+24(FP), R10
	MOVQ to+32(FP), R9
	MOVQ note+40(FP), R11

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

	// Other processors, and who maps the note when this process has been killed, see these stores and the swap in this order.
	LEAQ 1(R10)(R10*1), R12
	MOVQ R12, (R11)
	LOCK
	CMPXCHG16B (DI)(R10*8)
	JNE  failed
	ADDQ $3, R12
	MOVQ R12, (R11)

next:
	ADDQ $2, R10
	CMPQ R10, R9
	JLT  pair
	JMP  out

failed:
	DECQ R12
	MOVQ R12, (R11)

out:
	MOVQ R10, done+48(FP)
	RET

// func copyRows(to, from *uint64, n int)
TEXT ·copyRows(SB), NOSPLIT, $0-24
	MOVQ to+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ n+16(FP), CX

row:
	MOVOU (SI), X0
	MOVOU 16(SI), X1
	MOVOU 32(SI), X2
	MOVOU 48(SI), X3
	MOVOU X0, (DI)
	MOVOU X1, 16(DI)
	MOVOU X2, 32(DI)
	MOVOU X3, 48(DI)
	ADDQ  $64, SI
	ADDQ  $64, DI
	SUBQ  $8, CX
	JNZ   row
	RET
