/* The pieces of attached mappings: ranges are split where a call of the program ends inside of one, and joined again, as the kernel
   does with mappings. Only client.c includes this. The lock is held in all functions. */

static char *end_of(const range *r) { return r->addr + r->len; }

static int aligned(const void *p) { return (uintptr_t)p % (size_t)sysconf(_SC_PAGESIZE) == 0; }

static int meets(const range *r, const char *lo, const char *hi) { return r->addr < hi && lo < end_of(r); }

/* Whether [lo, hi) shows something of ours. */
static range *first_in(const char *lo, const char *hi)
{
    range *r = dsmfs__ranges;
    while (r && !meets(r, lo, hi))
        r = r->next;
    return r;
}

/* Whether the range is on demand. The daemon must serve such a range all the time: pages that other threads touch meanwhile
   would become zeroes. So it is not untracked; the kernel tells the daemon about changes of the mapping. */
static int on_demand(const range *r) { return r->area->kind & DSMFS__DEMAND; }

/* Settings that the program made for a mapping also apply to the parts made from it. */
static void inherit(range *made, const range *from)
{
    made->nofork = from->nofork;
    made->upgradable = from->upgradable;
}

/* Splits a range at an address inside it. The halves are not tracked, unless they are on demand. */
static int split(range *r, char *at)
{
    range *second = dsmfs__range(r->area, at, (size_t)(end_of(r) - at), r->off + (uint64_t)(at - r->addr), r->prot);
    if (!second)
        return -ENOMEM;
    dsmfs__untrack(r);
    second->tracked = r->tracked;
    inherit(second, r);
    r->len = (size_t)(at - r->addr);
    return 0;
}

/* What goes on where r ends as the same mapping, but for its protection. */
static range *after(const range *r)
{
    range *s = dsmfs__ranges;
    while (s && !(s->addr == end_of(r) && s->area == r->area && s->off == r->off + r->len && s->nofork == r->nofork))
        s = s->next;
    return s;
}

/* Joins pieces that meet at an address from lo to hi and have the same protection; those that the daemon tracks one by one only with tracked
   set. They stay tracked as they are: one UNTRACK ends it for all. If they were always joined, a program that protects the same page again and
   again would have all around it compared each time. */
static void join(const char *lo, const char *hi, int tracked)
{
    for (range *r = dsmfs__ranges, *s; r; r = r->next)
        while (end_of(r) >= lo && end_of(r) <= hi && (s = after(r)) && s->prot == r->prot &&
               !r->tracked == !s->tracked && (tracked || on_demand(r) || !r->tracked)) {
            r->len += s->len;
            if (!on_demand(r))
                r->tracked += s->tracked;
            dsmfs__drop(s);
        }
}

enum { MOST = 1024 }; /* mappings of an attachment that the daemon tracks: docs/attach.md */
enum { KEPT = -1 };   /* a protection: what each piece has */

/* The protection of a piece once [lo, hi) has the protection prot. */
static int later(const range *r, const char *lo, const char *hi, int prot) { return prot != KEPT && meets(r, lo, hi) ? prot : r->prot; }

/* How many mappings of an area must be tracked then, those that can be joined counted as one. Where each piece keeps its protection the
   call has another reason to split at lo and hi. */
static int to_track(const dsmfs *a, const char *lo, const char *hi, int prot)
{
    int n = 0, joined = 0;
    for (const range *r = dsmfs__ranges; r; r = r->next)
        n += r->area == a && dsmfs__wants(a, later(r, lo, hi, prot));
    for (const range *r = dsmfs__ranges, *s; r && n > MOST; r = r->next)
        joined += r->area == a && dsmfs__wants(a, later(r, lo, hi, prot)) && (s = after(r)) && later(s, lo, hi, prot) == later(r, lo, hi, prot) &&
                  (prot != KEPT || (s->addr != lo && s->addr != hi));
    return n - joined;
}

/* Whether the daemon cannot track what there will be of the areas that [lo, hi) shows, and so many mappings more. What is unmapped counts as
   PROT_NONE. */
static int crowded(const char *lo, const char *hi, int prot, int more)
{
    const dsmfs *seen = NULL;
    for (const range *r = dsmfs__ranges; r; r = r->next) {
        if (!meets(r, lo, hi) || r->area == seen || on_demand(r))
            continue;
        seen = r->area;
        if (to_track(seen, lo, hi, prot) + more > MOST)
            return 1;
    }
    return 0;
}

/* Splits ranges that cross lo or hi, so that every range is inside or outside of [lo, hi), which will have the protection prot. If the daemon
   cannot track so many it is ENOMEM, as from the kernel for a process with too many mappings. */
static int isolate(char *lo, char *hi, int prot)
{
    range *r = dsmfs__ranges;
    int err = 0;
    while (r && !err) {
        char *at = r->addr < lo && lo < end_of(r) ? lo : r->addr < hi && hi < end_of(r) ? hi : NULL;
        if (!at) {
            r = r->next;
            continue;
        }
        err = split(r, at);
        r = dsmfs__ranges; /* the new half is at the front */
    }
    return !err && crowded(lo, hi, prot, 0) ? -ENOMEM : err;
}

/* Joins all pieces of the area that have the same protection, so that one TRACK will do for them. Returns 0 if there are none. */
static int unite(const dsmfs *a)
{
    int found = 0;
    for (range *r = dsmfs__ranges, *s; r; r = r->next) {
        int same = r->area == a && !on_demand(r) && (s = after(r)) && s->prot == r->prot;
        if (r->area != a || (!same && r->tracked < 2))
            continue;
        dsmfs__untrack(r);
        if (same)
            dsmfs__untrack(s);
        found = 1;
    }
    join(NULL, (char *)UINTPTR_MAX, 0);
    return found;
}

/* Tracks what is to be tracked and is not. */
static void retrack(void)
{
    for (range *r = dsmfs__ranges; r;) {
        if (dsmfs__wants(r->area, r->prot) && !r->tracked && !r->area->lost && dsmfs__track(r) < 0) {
            if (unite(r->area)) {
                r = dsmfs__ranges;
                continue;
            }
            say("dsmfs: stores to %.200s are not seen any more: %.400s\n", r->area->path, dsmfs__text);
        }
        r = r->next;
    }
}

/* After a change of [lo, hi): joins and tracks what is left. */
static void settle(const char *lo, const char *hi)
{
    join(lo, hi, 0);
    retrack();
}

/* Ends the tracking of [lo, hi), which is about to be unmapped, but does not remove it from the list yet. */
static int untrack_in(char *lo, char *hi)
{
    int err = isolate(lo, hi, PROT_NONE);
    for (range *r = dsmfs__ranges; r && !err; r = r->next)
        if (meets(r, lo, hi))
            dsmfs__untrack(r);
    return err;
}

static void drop_in(char *lo, char *hi)
{
    range *r;
    while ((r = first_in(lo, hi)))
        dsmfs__drop(r);
}
