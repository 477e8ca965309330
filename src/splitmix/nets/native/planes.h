/* How the images and weights of a convolution lie in memory, and the pooling of what comes out.

   Inside, an image is a row of numbers: its rows follow each other with `pad` zeros between them, which are the right
   border of one and the left border of the next. So a tap of a kernel is a step along that row, and vectors hold
   neighbouring pixels whatever the width of an image is. */

#pragma once

#include "vectors.h"

typedef struct {
    long batch, bases, inputs, outputs, height, width, kernel, pad, shared, pool, normed;
} Conv;

static long pitch_of(const Conv *s) { return s->width + s->pad; }
static long area_of(const Conv *s) { return s->pool ? (s->height / 2) * (s->width / 2) : s->height * s->width; }
static long padded_of(const Conv *s) { return up((s->height + 2 * s->pad) * pitch_of(s) + s->pad, V) + SLACK + V; }
static long plane_of(const Conv *s) { return up(s->height * pitch_of(s), V); } /* numbers of one channel of one image */

/* dense channels of an image into padded ones */
static void pad_in(const Conv *s, const float *x, float *to)
{
    long pitch = pitch_of(s), size = padded_of(s);
    for (long i = 0; i < s->inputs; i++)
        for (long r = 0; r < s->height; r++)
            copy_row(x + (i * s->height + r) * s->width, to + i * size + (r + s->pad) * pitch + s->pad, s->width);
}

static const float *image(const Conv *s, const float *x, long n, long base)
{
    return x + (s->shared ? n : n * s->bases + base) * s->inputs * s->height * s->width;
}

static int block_of(long channels) { return channels <= NARROW ? NARROW : WIDE; }

/* weights (outputs, inputs, kernel, kernel) in the order of `tile`, in blocks of so many channels */
static void pack(const float *weight, long outputs, long inputs, long taps, int block, float *to)
{
    for (long o = 0; o < outputs; o++)
        for (long t = 0; t < inputs * taps; t++)
            to[(o / block * inputs * taps + t) * block + o % block] = weight[o * inputs * taps + t];
}

/* the same for the way back, on which outputs go in, and the kernel is turned round */
static void pack_back(const float *weight, long outputs, long inputs, long taps, int block, float *to)
{
    for (long i = 0; i < inputs; i++)
        for (long o = 0; o < outputs; o++)
            for (long t = 0; t < taps; t++)
                to[((i / block * outputs + o) * taps + t) * block + i % block] =
                    weight[(o * inputs + i) * taps + taps - 1 - t];
}

static void pool_rows(const float *restrict upper, const float *restrict lower, float sign, long n,
                      float *restrict best, int *restrict where)
{
    for (long j = 0; j < n; j++) {
        float a = upper[2 * j] * sign, b = upper[2 * j + 1] * sign, c = lower[2 * j] * sign, d = lower[2 * j + 1] * sign;
        int at = b > a ? 1 : 0;
        a = b > a ? b : a;
        at = c > a ? 2 : at;
        a = c > a ? c : a;
        at = d > a ? 3 : at;
        a = d > a ? d : a;
        best[j] = a * sign;
        where[j] = at;
    }
}

/* of one channel: the greatest of four, or the least where the norm turns them round, and which it is */
static void pool_plane(const Conv *s, const float *from, float gain, float *to, uint8_t *where)
{
    float best[SIDE], sign = gain > 0 ? 1 : gain < 0 ? -1 : 0;
    int at[SIDE];
    long pitch = pitch_of(s), wide = s->width / 2;
    for (long r = 0; r < s->height / 2; r++, to += wide, where += wide) {
        pool_rows(from + 2 * r * pitch, from + (2 * r + 1) * pitch, sign, up(wide, V), best, at);
        copy_row(best, to, wide);
        for (long j = 0; j < wide; j++) where[j] = (uint8_t)at[j];
    }
}

/* what lies between rows becomes a number of one's choice */
static void fill_between(const Conv *s, float *plane, float value)
{
    long pitch = pitch_of(s);
    for (long r = 0; r < s->height; r++)
        for (long q = s->width; q < pitch; q++) plane[r * pitch + q] = value;
    for (long q = s->height * pitch; q < plane_of(s); q++) plane[q] = value;
}
