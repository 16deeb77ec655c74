/* What replay on a CPU does most, in C: frame stacks and small columns are copied. Each function has
 * a twin in Python that gives the same bits (stacks.py), which is used where this cannot be
 * compiled. It knows no Python.
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

#define PART_BYTES (1 << 17) /* taken at a time */

static void work(job_t *job)
{
    int64_t lo, size = job->field->k * job->field->bytes;
    int64_t part = size < PART_BYTES ? PART_BYTES / size : 1;
    while ((lo = __atomic_fetch_add(&job->next, part, __ATOMIC_RELAXED)) < job->count) {
        int64_t hi = lo + part < job->count ? lo + part : job->count;
        for (int64_t i = lo; i < hi; i++) copy_item(job, i);
    }
    finish_streams();
}

/* --- Helpers: threads that sleep until there is a job, and take parts of it. One that is late
 * leaves more to the others, and one that has not begun at the end is not waited for. --- */

#define SPINS 20000 /* some tens of microseconds, what going to sleep and waking up takes */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t called = PTHREAD_COND_INITIALIZER, ended = PTHREAD_COND_INITIALIZER;
static job_t *current;          /* NULL: nobody needs help */
static int helpers, wanted;     /* threads that there are; that should still join */
static int active;              /* that work on the job now */

static void *help(void *nothing)
{
    (void)nothing;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!wanted) pthread_cond_wait(&called, &lock);
        job_t *job = current;
        wanted--;
        active++;
        pthread_mutex_unlock(&lock);
        work(job);
        pthread_mutex_lock(&lock);
        if (__atomic_sub_fetch(&active, 1, __ATOMIC_RELEASE) == 0) pthread_cond_signal(&ended);
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
    sigfillset(&all); /* signals are the interpreter's, but for faults of this thread's own */
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
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
