/* Which rows are meant, and the sum tree that is searched and updated, in C. Each function has a twin
 * in Python that gives the same bits (ring.py, host_tree.py, min_tree.py), as in copies.c.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* --- Which rows are meant: ids are row * columns + column, slots are ids within the ring. --- */

typedef struct {
    const int64_t *head;  /* [columns] the next row to write */
    const uint8_t *valid; /* [slots] whether an item may be drawn there */
    int64_t columns, slots;
} rows_t;

/* The id of the newest row that is in a slot. */
static int64_t newest(const rows_t *r, int64_t slot)
{
    int64_t column = slot % r->columns;
    int64_t end = (r->head[column] - 1) * r->columns + column;
    int64_t ago = (end - slot) % r->slots;
    return end - (ago < 0 ? ago + r->slots : ago);
}

void ludus_ids(const rows_t *r, const int64_t *slots, int64_t count, int64_t *ids)
{
    for (int64_t i = 0; i < count; i++) ids[i] = newest(r, slots[i]);
}

/* The slots of ids, and whether each id still means what may be drawn there; returns how many do. */
int64_t ludus_current(
    const rows_t *r, const int64_t *ids, int64_t count, int64_t *slots, uint8_t *current)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t slot = ids[i] % r->slots;
        slots[i] = slot < 0 ? slot + r->slots : slot;
    }
    for (int64_t i = 0; i < count; i++)
        found += current[i] = r->valid[slots[i]] && newest(r, slots[i]) == ids[i];
    return found;
}

/* --- The sum tree. Leaves are level 0; the sums of a level's nodes are the entries of the next. */

#define LEVELS 8

typedef struct {
    double *levels[LEVELS + 1]; /* the last is the top */
    int64_t nodes[LEVELS];      /* of each level */
    double *edges;              /* [top + 1], edges[0] = 0 */
    int64_t depth;              /* levels below the top */
    int64_t width, top, capacity;
} tree_t;

static void fetch_node(const tree_t *t, int64_t level, int64_t node)
{
    const double *from = t->levels[level] + node * t->width;
    for (int64_t i = 0; i < t->width; i += 8) __builtin_prefetch(from + i);
}

/* The node of a level, the last one if it does not exist: rounding may leave a search behind all
 * that the level above holds. */
static int64_t enter(const tree_t *t, int64_t level, int64_t node)
{
    if (node >= t->nodes[level]) node = t->nodes[level] - 1;
    fetch_node(t, level, node);
    return node;
}

/* Halves are added, then halves of that: an order that any implementation can keep. */
static inline __attribute__((always_inline)) double add_halves(const double *node, int64_t width)
{
    double part[width];
    memcpy(part, node, width * sizeof(double));
    for (int64_t n = width; n > 1;) {
        int64_t half = (n + 1) / 2;
        for (int64_t i = 0; i < n - half; i++) part[i] += part[half + i];
        n = half;
    }
    return part[0];
}

static double sum(const double *node, int64_t width)
{
    /* Known to the compiler, the usual width is a few vector additions. */
    return width == 32 ? add_halves(node, 32) : add_halves(node, width);
}

/* Sums above leaves lo .. hi-1, which were written. */
void ludus_tree_range(const tree_t *t, int64_t lo, int64_t hi)
{
    for (int64_t d = 0; d < t->depth; d++) {
        lo /= t->width;
        hi = (hi - 1) / t->width + 1;
        for (int64_t i = lo; i < hi; i++)
            t->levels[d + 1][i] = sum(t->levels[d] + i * t->width, t->width);
    }
}

/* Write leaves; of several values for one leaf the last stays. */
void ludus_tree_set(const tree_t *t, const int64_t *where, const double *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) fetch_node(t, 0, where[i] / t->width);
    for (int64_t i = 0; i < count; i++) t->levels[0][where[i]] = values[i];
    int64_t below = 1;
    for (int64_t d = 0; d < t->depth; d++) {
        below *= t->width;
        for (int64_t i = 0; i < count; i++) {
            int64_t node = where[i] / below;
            t->levels[d + 1][node] = sum(t->levels[d] + node * t->width, t->width);
        }
    }
}

/* The first entry that ends beyond x, from `hint` on, which is the answer to a smaller x; rounding
 * may leave x behind the last one, which is it then. */
static int64_t first_beyond(const double *ends, int64_t count, double x, int64_t hint)
{
    int64_t at = hint, stride = 8;
    while (at + stride < count && !(ends[at + stride - 1] > x)) {
        at += stride;
        stride *= 2;
    }
    int64_t n = (at + stride < count ? stride : count - at) - 1;
    while (n > 0) {
        int64_t half = n / 2;
        int beyond = ends[at + half] > x;
        at = beyond ? at : at + half + 1;
        n = beyond ? half : n - half - 1;
    }
    return at;
}

/* The leaf under each fraction u in [0, 1) of the total mass, and its value. All go down one level
 * before any goes down the next, so that their nodes come from memory at the same time. */
void ludus_tree_find(const tree_t *t, const double *u, int64_t count, int64_t *found, double *values)
{
    const double *top = t->levels[t->depth];
    double mass = 0, *left = values; /* of each: what is left of its mass within its node */
    for (int64_t i = 0; i < t->top; i++) t->edges[i + 1] = mass += top[i];
    for (int64_t i = 0; i < count; i++) {
        double x = u[i] * mass;
        int64_t hint = i && u[i] >= u[i - 1] ? found[i - 1] : 0; /* strata come in order */
        found[i] = first_beyond(t->edges + 1, t->top, x, hint);
        left[i] = x - t->edges[found[i]];
        fetch_node(t, t->depth - 1, found[i]);
    }
    for (int64_t d = t->depth - 1; d >= 0; d--) {
        for (int64_t i = 0; i < count; i++) {
            const double *node = t->levels[d] + found[i] * t->width;
            int64_t k = 0;
            double edge = node[0];
            while (k < t->width - 1 && !(edge > left[i])) edge += node[++k];
            left[i] -= edge - node[k];
            found[i] = found[i] * t->width + k;
            if (d) found[i] = enter(t, d - 1, found[i]);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        if (found[i] >= t->capacity) found[i] = t->capacity - 1;
        values[i] = t->levels[0][found[i]];
    }
}

/* --- The least positive leaf. An entry is the least one below it, infinity where there is none. */

typedef struct {
    double *levels[LEVELS + 1]; /* leaves first; the last has one node */
    int64_t depth;              /* levels above the leaves */
    int64_t width;
} mins_t;

static double least(const double *node, int64_t width)
{
    double found = INFINITY;
    for (int64_t i = 0; i < width; i++)
        if (node[i] > 0 && node[i] < found) found = node[i];
    return found;
}

/* These leaves were written. A node whose minimum stays leaves all above it as they are. */
void ludus_mins_set(const mins_t *m, const int64_t *where, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t node = where[i];
        for (int64_t d = 0; d < m->depth; d++) {
            node /= m->width;
            double found = least(m->levels[d] + node * m->width, m->width);
            if (m->levels[d + 1][node] == found) break;
            m->levels[d + 1][node] = found;
        }
    }
}

/* Leaves lo .. hi-1 were written. */
void ludus_mins_range(const mins_t *m, int64_t lo, int64_t hi)
{
    for (int64_t d = 0; d < m->depth; d++) {
        lo /= m->width;
        hi = (hi - 1) / m->width + 1;
        for (int64_t i = lo; i < hi; i++)
            m->levels[d + 1][i] = least(m->levels[d] + i * m->width, m->width);
    }
}
