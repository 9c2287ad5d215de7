/* floor.h: what the floors of publishes share. See floor.c. */
#ifndef FLOOR_H
#define FLOOR_H

#include <stddef.h>
#include <stdint.h>

enum { FLOOR_PAGE = 4096, FLOOR_FRAME = 512 << 10 /* at most */ };

/* What goes to the other end together: records of changed bytes, the long ones where they lie. */
struct frame;

/* frame_to makes one for a connection, of a file of so many bytes: small enough that both ends work at once. */
struct frame *frame_to(int conn, size_t bytes);
/* frame_page compares the page at a place with the base copy, copies what changed into that, and adds it. Both begin at origin in the file. It sends when there is much. */
void frame_page(struct frame *f, char *base, const char *mem, size_t at, size_t origin);
/* frame_end sends what is left, and says that this was all. */
void frame_end(struct frame *f);
/*
 * frame_take receives a frame, and puts what is in it into the base copy and the working copy, which may be NULL. It returns 0 at
 * the end of the connection, 2 after the last frame of a publish, else 1, and sets the range that it has changed.
 */
int frame_take(int conn, char *base, char *work, size_t *from, size_t *to);

/* take_all is frame_take until the end of a publish; 0 at the end of the connection. */
int take_all(int conn, char *base, char *work);
/* fresh is memory that is there. */
char *fresh(size_t size);

#endif
