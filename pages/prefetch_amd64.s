#include "textflag.h"

// func prefetchLines(p *byte, n int)
TEXT ·prefetchLines(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX

lines:
	PREFETCHT0 (SI)
	PREFETCHT0 64(SI)
	ADDQ       $128, SI
	SUBQ       $2, CX
	JGT        lines
	RET
