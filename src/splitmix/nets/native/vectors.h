/* What both kinds of layers need: vectors of the processor's length, and memory that begins at zero. */

#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
#define V 16   /* numbers in a vector */
#define WIDE 8 /* channels that are worked on at once */
#define LONG 4 /* channels whose slopes are summed up at once */
#else
#define V 8
#define WIDE 4
#define LONG 2
#endif
#define NARROW 4 /* the same where there are no more channels than that */
#define MOST 5   /* vectors of a channel that are worked on at once, at most */
#define SLACK (MOST * V)
#define SIDE 512 /* pixels of a row, at most */

typedef float vec __attribute__((vector_size(4 * V), aligned(4), may_alias));
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
#define UNROLL _Pragma("GCC unroll 32")
#define INLINE static inline __attribute__((always_inline))

static long up(long n, long to) { return (n + to - 1) / to * to; }
static long least(long a, long b) { return a < b ? a : b; }

static float *room(long numbers)
{
    float *found = aligned_alloc(64, up(4 * numbers, 64));
    if (found) memset(found, 0, up(4 * numbers, 64));
    return found;
}

INLINE float total(vec v)
{
    four *piece = (four *)&v, sum = piece[0];
    UNROLL for (int i = 1; i < V / 4; i++) sum += piece[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

INLINE vec where_positive(vec y, vec g)
{
    typedef int32_t mask __attribute__((vector_size(4 * V)));
    return (vec)((mask)(y > 0) & (mask)g);
}

INLINE void copy_row(const float *from, float *to, long n)
{
    for (long i = 0; i < n; i++) to[i] = from[i];
}
