/* The pieces of attached mappings: ranges are split where a call of the program ends inside of one. Only client.c includes this. The lock
   is held in all functions. */

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

/* Splits ranges that cross lo or hi, so that every range is inside or outside of [lo, hi). */
static int isolate(char *lo, char *hi)
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
    return err;
}

/* Tracks what is to be tracked and is not. */
static void retrack(void)
{
    for (range *r = dsmfs__ranges; r; r = r->next)
        if (dsmfs__wants(r->area, r->prot) && !r->tracked && !r->area->lost && dsmfs__track(r) < 0)
            say("dsmfs: stores to %.200s are not seen any more: %.400s\n", r->area->path, dsmfs__text);
}

/* Ends the tracking of [lo, hi), which is about to be unmapped, but does not remove it from the list yet. */
static int untrack_in(char *lo, char *hi)
{
    int err = isolate(lo, hi);
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
