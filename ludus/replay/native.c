/* What replay on a CPU does most, in C: frame stacks and small columns are copied, the sum tree is
 * searched and updated. Each function has a twin in Python that gives the same bits (stacks.py,
 * host_tree.py), which is used where this cannot be compiled. It knows no Python.
 */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* --- Copies that leave the caches to the rest of the program. --- */

/* Bytes that the processor is asked for ahead of the copy: it does not look beyond a page. */
#define AHEAD 1024

static void copy_past_caches(char *out, const char *in, int64_t bytes)
{
#ifdef __SSE2__
    int64_t head = -(uintptr_t)out & 63; /* whole lines from there on */
    if (head > bytes) head = bytes;
    memcpy(out, in, head);
    int64_t i = head;
    for (; i + 64 <= bytes; i += 64) {
        _mm_prefetch(in + i + AHEAD, _MM_HINT_NTA);
        __m128i a = _mm_loadu_si128((const __m128i *)(in + i));
        __m128i b = _mm_loadu_si128((const __m128i *)(in + i + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(in + i + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(in + i + 48));
        _mm_stream_si128((__m128i *)(out + i), a);
        _mm_stream_si128((__m128i *)(out + i + 16), b);
        _mm_stream_si128((__m128i *)(out + i + 32), c);
        _mm_stream_si128((__m128i *)(out + i + 48), d);
    }
    memcpy(out + i, in + i, bytes - i);
#else
    memcpy(out, in, bytes);
#endif
}

static void finish_streams(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

/* --- Stacks of frames. --- */

typedef struct {
    const char *rows;     /* of all slots */
    const uint8_t *begin; /* whether a row is the first of its episode; NULL if k = 1 */
    int64_t bytes;        /* of a row */
    int64_t k;            /* frames of a stack */
    int64_t columns, length;
    int64_t row_step, column_step;             /* where a slot lies in `rows`, */
    int64_t begin_row_step, begin_column_step; /* and in `begin` */
} stacks_t;

/* out [count, k, bytes] = the k newest frames up to each slot, zeros before an episode's first. */
typedef struct {
    const stacks_t *field;
    const int64_t *slots;
    char *out;
    int64_t count;
    int64_t next;    /* first item that nobody has taken */
    int64_t opened;  /* the newest frame of some stack is the first of its episode */
    int64_t outside; /* some slot does not exist */
} job_t;

static void copy_stack(const stacks_t *f, int64_t row, int64_t column, int64_t blank, char *out)
{
    int64_t k = f->k, bytes = f->bytes;
    memset(out, 0, blank * bytes);
    for (int64_t j = blank; j < k;) {
        int64_t r = row - (k - 1 - j);
        if (r < 0) r += f->length;
        int64_t together = 1; /* frames that lie one after the other */
        if (f->row_step == 1) {
            together = k - j;
            if (together > f->length - r) together = f->length - r;
        }
        const char *in = f->rows + (r * f->row_step + column * f->column_step) * bytes;
        copy_past_caches(out + j * bytes, in, together * bytes);
        j += together;
    }
}

static void copy_item(job_t *job, int64_t i)
{
    const stacks_t *f = job->field;
    int64_t slot = job->slots[i], k = f->k, blank = 0;
    if (slot < 0 || slot >= f->length * f->columns) {
        __atomic_store_n(&job->outside, 1, __ATOMIC_RELAXED);
        return;
    }
    int64_t row = slot / f->columns, column = slot % f->columns;
    for (int64_t j = k - 1; j > 0; j--) {
        int64_t r = row - (k - 1 - j);
        if (r < 0) r += f->length;
        if (f->begin[r * f->begin_row_step + column * f->begin_column_step]) {
            blank = j;
            break;
        }
    }
    if (k > 1 && blank == k - 1) __atomic_store_n(&job->opened, 1, __ATOMIC_RELAXED);
    copy_stack(f, row, column, blank, job->out + i * k * f->bytes);
}

/* Ask for what an item begins with while another is copied: memory takes longer to begin than to go
 * on. A slot that does not exist is no harm here. */
static void fetch_item(const job_t *job, int64_t i)
{
    const stacks_t *f = job->field;
    int64_t slot = job->slots[i];
    int64_t row = slot / f->columns, column = slot % f->columns;
    if (f->k > 1)
        __builtin_prefetch(f->begin + row * f->begin_row_step + column * f->begin_column_step);
    row = row < f->k ? 0 : row - f->k + 1; /* the oldest frame, if they lie one after the other */
    const char *in = f->rows + (row * f->row_step + column * f->column_step) * f->bytes;
    for (int64_t at = 0; at < AHEAD; at += 64) __builtin_prefetch(in + at);
}

#define PART_BYTES (1 << 17) /* taken at a time */

static void work(job_t *job)
{
    int64_t lo, size = job->field->k * job->field->bytes;
    int64_t part = size < PART_BYTES ? PART_BYTES / size : 1;
    while ((lo = __atomic_fetch_add(&job->next, part, __ATOMIC_RELAXED)) < job->count) {
        int64_t hi = lo + part < job->count ? lo + part : job->count;
        for (int64_t i = lo; i < hi; i++) {
            if (i + 1 < hi) fetch_item(job, i + 1);
            copy_item(job, i);
        }
    }
    finish_streams();
}

/* --- Helpers: threads that sleep until there is a job, and take parts of it. One that is late
 * leaves more to the others, and one that has not begun at the end is not waited for. --- */

#define SPINS 20000 /* some tens of microseconds, what going to sleep and waking up takes */
#define AWAKE 10000 /* some hundred, with breaths: the next job often comes soon */

static inline void breathe(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t called = PTHREAD_COND_INITIALIZER, ended = PTHREAD_COND_INITIALIZER;
static job_t *current;          /* NULL: nobody needs help */
static int helpers, wanted;     /* threads that there are; that should still join */
static int active;              /* that work on the job now */

static void *help(void *nothing)
{
    (void)nothing;
    for (;;) {
        for (int i = 0; i < AWAKE && !__atomic_load_n(&wanted, __ATOMIC_RELAXED); i++) breathe();
        pthread_mutex_lock(&lock);
        while (!wanted) pthread_cond_wait(&called, &lock);
        job_t *job = current;
        wanted--;
        active++;
        pthread_mutex_unlock(&lock);
        work(job);
        pthread_mutex_lock(&lock);
        if (__atomic_sub_fetch(&active, 1, __ATOMIC_RELEASE) == 0) pthread_cond_signal(&ended);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

/* A forked process has none of its parent's threads. */
static void forget_helpers(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    called = ended = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    current = NULL;
    helpers = wanted = active = 0;
}

static void hire(int count)
{
    sigset_t all, before;
    sigfillset(&all); /* signals are the interpreter's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (helpers < count) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, NULL)) break;
        pthread_detach(thread);
        helpers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Helpers begin with a job; the caller may do other things before it calls ludus_finish, and must
 * call it. While they have the job of another caller they take no second one. */
void ludus_begin(job_t *job, int threads)
{
    static int registered;
    if (threads <= 1) return;
    pthread_mutex_lock(&lock);
    if (!current) {
        if (!registered++) pthread_atfork(NULL, NULL, forget_helpers);
        hire(threads - 1);
        current = job;
        wanted = threads - 1 < helpers ? threads - 1 : helpers;
        for (int i = 0; i < wanted; i++) pthread_cond_signal(&called);
    }
    pthread_mutex_unlock(&lock);
}

/* Do what is left of a job and wait for those who help. */
void ludus_finish(job_t *job)
{
    work(job);
    pthread_mutex_lock(&lock);
    int helped = current == job;
    if (helped) wanted = 0;
    pthread_mutex_unlock(&lock);
    if (!helped) return;
    for (int i = 0; i < SPINS && __atomic_load_n(&active, __ATOMIC_ACQUIRE); i++) {}
    pthread_mutex_lock(&lock);
    while (active) pthread_cond_wait(&ended, &lock);
    current = NULL;
    pthread_mutex_unlock(&lock);
}

/* Rows [steps, width] of `bytes` each, one after the other in `in`, to a ring whose columns lie one
 * after the other: the first to row `row` of column `column`, and no row beyond the last. */
void ludus_write(
    char *rows, int64_t length, int64_t bytes, int64_t row, int64_t column, const char *in,
    int64_t steps, int64_t width)
{
    for (int64_t b = 0; b < width; b++)
        for (int64_t t = 0; t < steps; t++) {
            char *out = rows + ((column + b) * length + row + t) * bytes;
            copy_past_caches(out, in + (t * width + b) * bytes, bytes);
        }
    finish_streams();
}

/* --- Small columns. --- */

typedef struct {
    const char *rows;
    int64_t bytes; /* of a row */
} column_t;

#define PICK(type)                                                         \
    for (int64_t i = 0; i < count; i++) ((type *)out)[i] = ((const type *)c->rows)[slots[i]]

static void pick(const column_t *c, const int64_t *slots, int64_t count, char *out)
{
    switch (c->bytes) {
    case 1: PICK(uint8_t); break;
    case 4: PICK(uint32_t); break;
    case 8: PICK(uint64_t); break;
    default:
        for (int64_t i = 0; i < count; i++)
            memcpy(out + i * c->bytes, c->rows + slots[i] * c->bytes, c->bytes);
    }
}

/* outs[c] [count, bytes] = rows of each column c at `slots`, which must exist. */
void ludus_pick(const column_t *columns, int64_t n, const int64_t *slots, int64_t count, char **outs)
{
    for (int64_t c = 0; c < n; c++) pick(columns + c, slots, count, outs[c]);
}

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
