#include "textflag.h"

// COPY64 copies 64 bytes.
#define COPY64(from, to) \
	MOVOU (from), X0;   \
	MOVOU 16(from), X1; \
	MOVOU 32(from), X2; \
	MOVOU 48(from), X3; \
	MOVOU X0, (to);     \
	MOVOU X1, 16(to);   \
	MOVOU X2, 32(to);   \
	MOVOU X3, 48(to)

// GATHER moves the bytes at off(SI) that are in the low 8 bits of AX to DI, writing 8
// bytes there, and both on: AX by those bits and DI by as many bytes as they are.
#define GATHER(off) \
	MOVBLZX AL, BX;         \
	MOVQ    off(SI), X0;    \
	MOVQ    (R8)(BX*8), X1; \
	PSHUFB  X1, X0;         \
	MOVQ    X0, (DI);       \
	POPCNTL BX, BX;         \
	ADDQ    BX, DI;         \
	SHRQ    $8, AX

// DI never overtakes SI, so what is written, up to DI+8, was read, and is in the page.

// func gatherShuffle(m *mask, page *byte, table *[256][8]byte)
TEXT ·gatherShuffle(SB), NOSPLIT, $0-24
	MOVQ m+0(FP), DX
	MOVQ page+8(FP), SI
	MOVQ table+16(FP), R8
	MOVQ SI, DI
	MOVQ $64, CX

word:
	MOVQ  (DX), AX
	TESTQ AX, AX
	JEQ   next
	CMPQ  AX, $-1
	JEQ   all
	GATHER(0)
	GATHER(8)
	GATHER(16)
	GATHER(24)
	GATHER(32)
	GATHER(40)
	GATHER(48)
	GATHER(56)

next:
	ADDQ $8, DX
	ADDQ $64, SI
	DECQ CX
	JNZ  word
	RET

all:
	COPY64(SI, DI)
	ADDQ $64, DI
	JMP  next

// SCATTER is the inverse of GATHER, from SI to off(DI): it reads 8 bytes. PBLENDVB
// takes the bytes of the page where those of X0 have their highest bit set.
#define SCATTER(off) \
	MOVBLZX  AL, BX;         \
	MOVQ     (R8)(BX*8), X0; \
	MOVQ     off(DI), X2;    \
	MOVQ     (SI), X1;       \
	PSHUFB   X0, X1;         \
	PBLENDVB X0, X2, X1;     \
	MOVQ     X1, off(DI);    \
	POPCNTL  BX, BX;         \
	ADDQ     BX, SI;         \
	SHRQ     $8, AX

// A word of the mask takes at most 64 bytes, and its last octet reads up to 8 bytes from
// where at most 56 are taken.

// func scatterShuffle(m *uint64, n int, page, data *byte, size int, table *[256][8]byte) (done, used int)
TEXT ·scatterShuffle(SB), NOSPLIT, $0-64
	MOVQ m+0(FP), DX
	MOVQ n+8(FP), CX
	MOVQ page+16(FP), DI
	MOVQ data+24(FP), SI
	MOVQ size+32(FP), R9
	MOVQ table+40(FP), R8
	LEAQ -64(SI)(R9*1), R9 // the last place that has 64 bytes

word:
	CMPQ  SI, R9
	JHI   end
	MOVQ  (DX), AX
	TESTQ AX, AX
	JEQ   next
	CMPQ  AX, $-1
	JEQ   all
	SCATTER(0)
	SCATTER(8)
	SCATTER(16)
	SCATTER(24)
	SCATTER(32)
	SCATTER(40)
	SCATTER(48)
	SCATTER(56)

next:
	ADDQ $8, DX
	ADDQ $64, DI
	DECQ CX
	JNZ  word

end:
	MOVQ n+8(FP), AX
	SUBQ CX, AX
	MOVQ AX, done+48(FP)
	SUBQ data+24(FP), SI
	MOVQ SI, used+56(FP)
	RET

all:
	COPY64(SI, DI)
	ADDQ $64, SI
	JMP  next
