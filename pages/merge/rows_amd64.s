#include "textflag.h"

// SSE2 only, as in diff_amd64.s. Each loop does 16 elements of four bytes, or 8 of eight; n is a multiple of that.

// func addRows(to, from *float32, n int)
TEXT ·addRows(SB), NOSPLIT, $0-24
	MOVQ to+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ n+16(FP), CX

add:
	MOVUPS (SI), X0
	MOVUPS 16(SI), X1
	MOVUPS 32(SI), X2
	MOVUPS 48(SI), X3
	MOVUPS (DI), X4
	MOVUPS 16(DI), X5
	MOVUPS 32(DI), X6
	MOVUPS 48(DI), X7
	ADDPS  X0, X4
	ADDPS  X1, X5
	ADDPS  X2, X6
	ADDPS  X3, X7
	MOVUPS X4, (DI)
	MOVUPS X5, 16(DI)
	MOVUPS X6, 32(DI)
	MOVUPS X7, 48(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	SUBQ   $16, CX
	JNZ    add
	RET

// SUBTRACT sets out to working-base, and the bits of X12 in which base+(working-base) differs from working.
#define SUBTRACT(off, base, working, diff) \
	MOVUPS off(SI), base;    \
	MOVUPS off(DX), working; \
	MOVAPS working, diff;    \
	SUBPS  base, diff;       \
	MOVUPS diff, off(DI);    \
	ADDPS  diff, base;       \
	PXOR   working, base;    \
	POR    base, X12

// func subtractRows(base, working, out *float32, n int) (off bool)
TEXT ·subtractRows(SB), NOSPLIT, $0-33
	MOVQ base+0(FP), SI
	MOVQ working+8(FP), DX
	MOVQ out+16(FP), DI
	MOVQ n+24(FP), CX
	PXOR X12, X12

subtract:
	SUBTRACT(0, X0, X1, X2)
	SUBTRACT(16, X3, X4, X5)
	SUBTRACT(32, X6, X7, X8)
	SUBTRACT(48, X9, X10, X11)
	ADDQ $64, SI
	ADDQ $64, DX
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ  subtract

	// Whether any bit of X12 is set.
	MOVO   X12, X0
	PSRLDQ $8, X0
	POR    X12, X0
	MOVQ   X0, AX
	TESTQ  AX, AX
	SETNE  off+32(FP)
	RET

// func addQuotients(to, from *float32, divisor float32, n int)
TEXT ·addQuotients(SB), NOSPLIT, $0-32
	MOVQ   to+0(FP), DI
	MOVQ   from+8(FP), SI
	MOVSS  divisor+16(FP), X8
	SHUFPS $0, X8, X8
	MOVQ   n+24(FP), CX

divide:
	MOVUPS (SI), X0
	MOVUPS 16(SI), X1
	MOVUPS 32(SI), X2
	MOVUPS 48(SI), X3
	DIVPS  X8, X0
	DIVPS  X8, X1
	DIVPS  X8, X2
	DIVPS  X8, X3
	MOVUPS (DI), X4
	MOVUPS 16(DI), X5
	MOVUPS 32(DI), X6
	MOVUPS 48(DI), X7
	ADDPS  X0, X4
	ADDPS  X1, X5
	ADDPS  X2, X6
	ADDPS  X3, X7
	MOVUPS X4, (DI)
	MOVUPS X5, 16(DI)
	MOVUPS X6, 32(DI)
	MOVUPS X7, 48(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	SUBQ   $16, CX
	JNZ    divide
	RET

// KEY sets key to the number of x in the order, as order.of does. The order is in X8 to X11.
#define KEY(x, key) \
	MOVO  x, key;   \
	PSRAL $31, key; \
	PAND  X8, key;  \
	PXOR  x, key;   \
	PXOR  X9, key;  \
	PADDL X10, key; \
	PXOR  X11, key

// KEEP leaves at off(DI) the better one of the elements there and at off(SI).
#define KEEP(off, to, from, key, other) \
	MOVOU   off(DI), to;   \
	MOVOU   off(SI), from; \
	KEY(to, key);          \
	KEY(from, other);      \
	PCMPGTL other, key;    \
	PXOR    to, from;      \
	PAND    key, from;     \
	PXOR    from, to;      \
	MOVOU   to, off(DI)

// func keepRows(to, from *uint32, n int, o *order[uint32])
TEXT ·keepRows(SB), NOSPLIT, $0-32
	MOVQ   to+0(FP), DI
	MOVQ   from+8(FP), SI
	MOVQ   n+16(FP), CX
	MOVQ   o+24(FP), AX
	MOVL   (AX), X8
	PSHUFD $0, X8, X8
	MOVL   4(AX), X9
	PSHUFD $0, X9, X9
	MOVL   8(AX), X10
	PSHUFD $0, X10, X10
	MOVL   12(AX), X11
	PSHUFD $0, X11, X11

	// Keys are compared with a sign.
	MOVL   $0x80000000, BX
	MOVL   BX, X12
	PSHUFD $0, X12, X12
	PXOR   X12, X11

keep:
	KEEP(0, X0, X1, X2, X3)
	KEEP(16, X4, X5, X6, X7)
	KEEP(32, X0, X1, X2, X3)
	KEEP(48, X4, X5, X6, X7)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ  keep
	RET

// func carryRows(p *uint64, n int, keep, add uint64) uint64
TEXT ·carryRows(SB), NOSPLIT, $0-40
	MOVQ       p+0(FP), SI
	MOVQ       n+8(FP), CX
	MOVQ       keep+16(FP), X8
	PUNPCKLQDQ X8, X8
	MOVQ       add+24(FP), X9
	PUNPCKLQDQ X9, X9
	PXOR       X10, X10
	PXOR       X11, X11

carry:
	MOVOU (SI), X0
	MOVOU 16(SI), X1
	MOVOU 32(SI), X2
	MOVOU 48(SI), X3
	PAND  X8, X0
	PAND  X8, X1
	PAND  X8, X2
	PAND  X8, X3
	PADDQ X9, X0
	PADDQ X9, X1
	PADDQ X9, X2
	PADDQ X9, X3
	POR   X0, X10
	POR   X1, X11
	POR   X2, X10
	POR   X3, X11
	ADDQ  $64, SI
	SUBQ  $8, CX
	JNZ   carry
	POR   X11, X10
	MOVHLPS X10, X0
	POR   X0, X10
	MOVQ  X10, ret+32(FP)
	RET
