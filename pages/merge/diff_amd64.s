#include "textflag.h"

// SSE2 only, which every amd64 has: with AVX2 the loop is not faster, since
// memory is not.

// LOAD reads 16 bytes of working into x, leaves them in snap, and compares them with
// those of base by CMP: the units of x that are equal are all ones afterwards.
#define LOAD(off, x, y, CMP) \
	MOVOU off(DX), x; \
	MOVOU off(SI), y; \
	MOVOU x, off(R8); \
	CMP   y, x

// func diffUnits1(units *uint64, base, working, snap *byte, n int)
TEXT ·diffUnits1(SB), NOSPLIT, $0-40
	MOVQ units+0(FP), DI
	MOVQ base+8(FP), SI
	MOVQ working+16(FP), DX
	MOVQ snap+24(FP), R8
	MOVQ n+32(FP), CX

bytes:
	LOAD(0, X0, X4, PCMPEQB)
	LOAD(16, X1, X5, PCMPEQB)
	LOAD(32, X2, X6, PCMPEQB)
	LOAD(48, X3, X7, PCMPEQB)
	PMOVMSKB X0, AX
	PMOVMSKB X1, BX
	PMOVMSKB X2, R9
	PMOVMSKB X3, R10
	SHLQ     $16, BX
	SHLQ     $32, R9
	SHLQ     $48, R10
	ORQ      BX, AX
	ORQ      R10, R9
	ORQ      R9, AX
	NOTQ     AX
	MOVQ     AX, (DI)
	ADDQ     $8, DI
	ADDQ     $64, SI
	ADDQ     $64, DX
	ADDQ     $64, R8
	DECQ     CX
	JNZ      bytes
	RET

// func diffUnits4(units *uint64, base, working, snap *byte, n int)
TEXT ·diffUnits4(SB), NOSPLIT, $0-40
	MOVQ units+0(FP), DI
	MOVQ base+8(FP), SI
	MOVQ working+16(FP), DX
	MOVQ snap+24(FP), R8
	MOVQ n+32(FP), CX

word:
	XORQ R9, R9
	MOVQ $4, BX

quarter:
	LOAD(0, X0, X4, PCMPEQL)
	LOAD(16, X1, X5, PCMPEQL)
	LOAD(32, X2, X6, PCMPEQL)
	LOAD(48, X3, X7, PCMPEQL)
	PACKSSLW X1, X0
	PACKSSLW X3, X2
	PACKSSWB X2, X0
	PMOVMSKB X0, AX
	SHLQ     $48, AX
	SHRQ     $16, R9
	ORQ      AX, R9
	ADDQ     $64, SI
	ADDQ     $64, DX
	ADDQ     $64, R8
	DECQ     BX
	JNZ      quarter
	NOTQ     R9
	MOVQ     R9, (DI)
	ADDQ     $8, DI
	DECQ     CX
	JNZ      word
	RET
