/* Convolutions of several bases in one go, forward and back, with the batch norm behind them, max-pooling and ReLU.
   Batches are (batch, base*channel, height, width), float, one row after another. */

#include "planes.h"

long plane_for(const Conv *s) { return plane_of(s); }

/* out[c][o] = bias[c] + sum of in[i][o + r*pitch + s] * weights[i][r][s][c], for C channels and P vectors of places */
INLINE void tile(const int C, const int P, const float *in, long size, const Conv *s, long inputs, const float *weights,
                 const float *bias, float *out, long step)
{
    long pitch = pitch_of(s), kernel = s->kernel;
    vec sum[WIDE][MOST];
    UNROLL for (int c = 0; c < C; c++) UNROLL for (int p = 0; p < P; p++) sum[c][p] = (vec){} + bias[c];
    for (long i = 0; i < inputs; i++, in += size)
        for (long r = 0; r < kernel; r++)
            for (long q = 0; q < kernel; q++, weights += C) {
                vec x[MOST];
                UNROLL for (int p = 0; p < P; p++) x[p] = *(const vec *)(in + r * pitch + q + p * V);
                UNROLL for (int c = 0; c < C; c++) {
                    float weight = weights[c];
                    UNROLL for (int p = 0; p < P; p++) sum[c][p] += x[p] * weight;
                }
            }
    UNROLL for (int c = 0; c < C; c++) UNROLL for (int p = 0; p < P; p++) *(vec *)(out + c * step + p * V) = sum[c][p];
}

#define TILES(C, P)                                                                                                    \
    for (; left >= P && left != P + 1; left -= P, in += P * V, out += P * V)                                           \
        tile(C, P, in, size, s, inputs, weights, bias, out, step);

static void convolve(const Conv *s, const float *in, long size, long inputs, int channels, const float *weights,
                     const float *bias, float *out, long step)
{
    long left = plane_of(s) / V;
    if (channels == WIDE) {
        TILES(WIDE, 3)
        TILES(WIDE, 2)
        for (; left; left--, in += V, out += V) tile(WIDE, 1, in, size, s, inputs, weights, bias, out, step);
    } else {
#if V == 16
        TILES(NARROW, 5)
#endif
        TILES(NARROW, 3)
        TILES(NARROW, 2)
        for (; left; left--, in += V, out += V) tile(NARROW, 1, in, size, s, inputs, weights, bias, out, step);
    }
}

/* kept[c][q] += sum over images and places of slope[c][o] * in[o + q]: one input channel, one row of the kernel */
INLINE void gather(const int K, const float *in, long in_step, const float *slope, long plane, long step, long images,
                   long places, vec *kept)
{
    vec sum[LONG][5];
    UNROLL for (int c = 0; c < LONG; c++) UNROLL for (int q = 0; q < K; q++) sum[c][q] = kept[c * K + q];
    for (; images; images--, in += in_step, slope += step)
        for (long o = 0; o < places; o += V) {
            vec g[LONG];
            UNROLL for (int c = 0; c < LONG; c++) g[c] = *(const vec *)(slope + c * plane + o);
            UNROLL for (int q = 0; q < K; q++) {
                vec x = *(const vec *)(in + o + q);
                UNROLL for (int c = 0; c < LONG; c++) sum[c][q] += g[c] * x;
            }
        }
    UNROLL for (int c = 0; c < LONG; c++) UNROLL for (int q = 0; q < K; q++) kept[c * K + q] = sum[c][q];
}

static void gather_row(const Conv *s, const float *in, long in_step, const float *slope, long plane, long step,
                       long images, vec *kept)
{
    if (s->kernel == 5) gather(5, in, in_step, slope, plane, step, images, plane_of(s), kept);
    else if (s->kernel == 3) gather(3, in, in_step, slope, plane, step, images, plane_of(s), kept);
    else gather(1, in, in_step, slope, plane, step, images, plane_of(s), kept);
}

/* y = relu(pool(norm(conv(x)))). `z` keeps what goes into the norm, `pooled` and `where` what a pool takes of it.
   Without a norm only `y` and `where` are written. 0: done; 1: no memory. */
int conv_forward(const Conv *s, const float *x, const float *weight, const float *bias, const float *gain,
                 const float *shift, float eps, float *z, float *pooled, float *y, uint8_t *where, float *mean,
                 float *var)
{
    long plane = plane_of(s), size = padded_of(s), taps = s->kernel * s->kernel, all = s->bases * s->outputs;
    long area = area_of(s), pitch = pitch_of(s), step = plane + SLACK, places = s->height * s->width;
    int block = block_of(s->outputs);
    long rows = up(s->outputs, block), each = rows * s->inputs * taps;
    float *in = room(s->inputs * size), *weights = room(s->bases * each), *biases = room(s->bases * rows);
    float *out = room(block * step);
    double *sums = calloc(2 * all, sizeof(double));
    int failed = !in || !weights || !biases || !out || !sums;
    for (long b = 0; b < s->bases && !failed; b++) {
        pack(weight + b * s->outputs * s->inputs * taps, s->outputs, s->inputs, taps, block, weights + b * each);
        copy_row(bias + b * s->outputs, biases + b * rows, s->outputs);
    }
    for (long n = 0; n < s->batch && !failed; n++)
        for (long b = 0; b < s->bases; b++) {
            if (!b || !s->shared) pad_in(s, image(s, x, n, b), in);
            for (long o = 0; o < s->outputs; o++) {
                if (o % block == 0)
                    convolve(s, in, size, s->inputs, block, weights + b * each + o * s->inputs * taps,
                             biases + b * rows + o, out, step);
                long channel = b * s->outputs + o, place = n * all + channel;
                float *from = out + o % block * step;
                if (s->normed) {
                    float usual = n ? z[channel * plane] : from[0]; /* sums of what is near zero lose nothing */
                    vec one = {}, two = {};
                    fill_between(s, from, usual);
                    for (long i = 0; i < plane; i += V) {
                        vec v = *(vec *)(from + i);
                        *(vec *)(z + place * plane + i) = v;
                        v -= usual;
                        one += v;
                        two += v * v;
                    }
                    sums[2 * channel] += total(one);
                    sums[2 * channel + 1] += total(two);
                    if (s->pool) pool_plane(s, from, gain[channel], pooled + place * area, where + place * area);
                } else {
                    float *to = y + place * area;
                    if (s->pool) pool_plane(s, from, 1, to, where + place * area);
                    else for (long r = 0; r < s->height; r++) copy_row(from + r * pitch, to + r * s->width, s->width);
                    for (long i = 0; i < area; i++) to[i] = to[i] > 0 ? to[i] : 0;
                }
            }
        }
    for (long c = 0; c < all && s->normed && !failed; c++) {
        double count = (double)s->batch * places, m = sums[2 * c] / count, v = sums[2 * c + 1] / count - m * m;
        mean[c] = (float)(m + z[c * plane]);
        var[c] = (float)(v > 0 ? v : 0);
    }
    for (long i = 0; i < s->batch * all && s->normed && !failed; i++) {
        float a = gain[i % all] / sqrtf(var[i % all] + eps), d = shift[i % all] - a * mean[i % all], *to = y + i * area;
        long wide = s->pool ? area : s->width, next = s->pool ? area : pitch;
        const float *from = s->pool ? pooled + i * area : z + i * plane;
        for (long r = 0; r < area / wide; r++)
            for (long j = 0; j < wide; j++) {
                float v = a * from[r * next + j] + d;
                to[r * wide + j] = v > 0 ? v : 0;
            }
    }
    free(in), free(weights), free(biases), free(out), free(sums);
    return failed;
}

/* the slopes of two rows: what the norm takes from all, and what arrives where a pool took its value */
static void slope_rows(const float *restrict z0, const float *restrict z1, const float *restrict g,
                       const uint8_t *restrict where, float c0, float c1, long n, float *restrict to0,
                       float *restrict to1)
{
    float twice[SIDE];
    int code[SIDE];
    for (long j = 0; j < n; j++) twice[2 * j] = twice[2 * j + 1] = g[j];
    for (long j = 0; j < n; j++) code[2 * j] = where[j], code[2 * j + 1] = where[j] - 1;
    for (long j = 0; j < 2 * n; j++) to0[j] = c0 + c1 * z0[j] + (code[j] == 0 ? twice[j] : 0);
    for (long j = 0; j < 2 * n; j++) to1[j] = c0 + c1 * z1[j] + (code[j] == 2 ? twice[j] : 0);
}

/* slopes of one channel before the norm, from those behind the ReLU; `to` may be longer than the image */
static void slope_plane(const Conv *s, const float *z, const float *g, const float *y, const uint8_t *where, float a,
                        float c0, float c1, float *masked, float *to)
{
    long pitch = pitch_of(s), area = area_of(s), high = s->pool ? s->height / 2 : s->height, wide = area / high;
    for (long j = 0; j < area; j++) masked[j] = y[j] > 0 ? a * g[j] : 0;
    if (s->pool) {
        for (long r = 0; r < high; r++)
            slope_rows(z + 2 * r * pitch, z + (2 * r + 1) * pitch, masked + r * wide, where + r * wide, c0, c1, wide,
                       to + 2 * r * pitch, to + (2 * r + 1) * pitch);
        for (long r = 0; r < s->height; r++)
            for (long q = r < 2 * high ? 2 * wide : 0; q < s->width; q++)
                to[r * pitch + q] = c0 + c1 * z[r * pitch + q];
    } else {
        for (long r = 0; r < high; r++) copy_row(masked + r * wide, to + r * pitch, wide);
        fill_between(s, to, 0);
        for (long o = 0; o < plane_of(s); o++) to[o] += c0 + c1 * z[o];
    }
    fill_between(s, to, 0);
}

/* The sums of slopes behind the norm, plain and times what is normalised: those of its shift and of its gain. */
static void reduce(const Conv *s, const float *g, const float *y, const float *z, const float *pooled, float mean,
                   float inv, float *masked, float *rows, double *sums)
{
    long area = area_of(s), count = area, pitch = pitch_of(s);
    const float *from = pooled;
    vec one = {}, two = {};
    for (long j = 0; j < area; j++) masked[j] = y[j] > 0 ? g[j] : 0;
    if (!s->pool && s->normed) {
        for (long r = 0; r < s->height; r++) copy_row(masked + r * s->width, rows + r * pitch, s->width);
        fill_between(s, rows, 0);
        masked = rows, from = z, count = plane_of(s);
    }
    for (long j = 0; j + V <= count; j += V) {
        vec v = *(vec *)(masked + j);
        one += v;
        if (s->normed) two += v * ((*(const vec *)(from + j) - mean) * inv);
    }
    float a = total(one), b = total(two);
    for (long j = count / V * V; j < count; j++) {
        a += masked[j];
        if (s->normed) b += masked[j] * ((from[j] - mean) * inv);
    }
    sums[0] += a, sums[1] += b;
}

/* The slopes of everything that `conv_forward` was given; those of images only if `gx`, of weights if `gweight`. */
int conv_backward(const Conv *s, const float *gy, const float *x, const float *weight, const float *gain, float eps,
                  const float *z, const float *pooled, const float *y, const uint8_t *where, const float *mean,
                  const float *var, float *gx, float *gweight, float *gbias, float *ggain, float *gshift)
{
    long plane = plane_of(s), size = padded_of(s), taps = s->kernel * s->kernel, all = s->bases * s->outputs;
    long area = area_of(s), pitch = pitch_of(s), step = plane + SLACK, shape = s->outputs * s->inputs * taps;
    long before = s->pad * pitch + s->pad, lead = up(before, V), length = plane + 2 * lead + SLACK + V;
    long most = up(s->outputs, LONG), pixels = s->height * s->width;
    long many = least(s->batch, 1 + 65536 / (s->inputs * size + most * length)); /* images that stay near */
    int block = block_of(s->inputs);
    float *in = room(many * s->inputs * size), *slopes = room(many * most * length), *masked = room(area + V);
    float *weights = room(up(s->inputs, block) * s->outputs * taps), *out = room(block * step), *zeros = room(plane + V);
    float *kept = room(most * s->inputs * taps * V), *rows = room(plane + V), nothing[WIDE] = {0};
    double *sums = calloc(2 * all, sizeof(double));
    int failed = !in || !slopes || !masked || !weights || !out || !zeros || !kept || !rows || !sums;
    for (long i = 0; i < s->batch * all && !failed; i++) {
        long c = i % all;
        float inv = s->normed ? 1 / sqrtf(var[c] + eps) : 1, m = s->normed ? mean[c] : 0;
        reduce(s, gy + i * area, y + i * area, z + i * plane, pooled + i * area, m, inv, masked, rows, sums + 2 * c);
    }
    for (long c = 0; c < all && !failed; c++) {
        gbias[c] = s->normed ? 0 : (float)sums[2 * c]; /* what a bias adds to all, the norm takes away */
        gshift[c] = (float)sums[2 * c], ggain[c] = (float)sums[2 * c + 1];
    }
    for (long b = 0; b < s->bases && !failed; b++) {
        pack_back(weight + b * shape, s->outputs, s->inputs, taps, block, weights);
        memset(kept, 0, 4 * most * s->inputs * taps * V);
        for (long first = 0; first < s->batch; first += many) {
            long here = least(many, s->batch - first);
            for (long n = 0; n < here; n++) {
                if (gweight) pad_in(s, image(s, x, first + n, b), in + n * s->inputs * size);
                for (long o = 0; o < s->outputs; o++) {
                    long c = b * s->outputs + o, i = (first + n) * all + c;
                    float a = 1, c0 = 0, c1 = 0, count = (float)s->batch * pixels;
                    if (s->normed) {
                        float inv = 1 / sqrtf(var[c] + eps);
                        a = gain[c] * inv, c1 = -a * inv * ggain[c] / count, c0 = -a * gshift[c] / count - c1 * mean[c];
                    }
                    slope_plane(s, s->normed ? z + i * plane : zeros, gy + i * area, y + i * area, where + i * area, a,
                                c0, c1, masked, slopes + (n * most + o) * length + lead);
                }
            }
            for (long o = 0; o < s->outputs && gweight; o += LONG)
                for (long i = 0; i < s->inputs; i++)
                    for (long r = 0; r < s->kernel; r++)
                        gather_row(s, in + i * size + r * pitch, s->inputs * size, slopes + o * length + lead, length,
                                   most * length, here,
                                   (vec *)kept + ((o / LONG * s->inputs + i) * s->kernel + r) * LONG * s->kernel);
            for (long i = 0; i < here * s->inputs && gx; i++) {
                long n = i / s->inputs, c = i % s->inputs;
                if (c % block == 0)
                    convolve(s, slopes + n * most * length + lead - before, length, s->outputs, block,
                             weights + c * s->outputs * taps, nothing, out, step);
                float *to = gx + (((first + n) * s->bases + b) * s->inputs + c) * pixels;
                for (long r = 0; r < s->height; r++)
                    copy_row(out + c % block * step + r * pitch, to + r * s->width, s->width);
            }
        }
        float *to = gweight + b * shape;
        for (long o = 0; o < s->outputs && gweight; o++)
            for (long i = 0; i < s->inputs * s->kernel; i++) { /* an input channel, and a row of the kernel */
                vec *of = (vec *)kept + (o / LONG * s->inputs * s->kernel + i) * LONG * s->kernel;
                for (long q = 0; q < s->kernel; q++) *to++ = total(of[o % LONG * s->kernel + q]);
            }
    }
    free(in), free(slopes), free(masked), free(weights), free(out), free(zeros), free(kept), free(rows), free(sums);
    return failed;
}
