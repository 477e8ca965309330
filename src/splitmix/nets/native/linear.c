/* Linear maps of several bases in one go, forward and back, with the batch norm behind them and ReLU. Batches are
   (batch, base*feature). Inside, samples are the last axis: `span` of them, those beyond the batch are zero. */

#include "vectors.h"

typedef struct {
    long batch, bases, inputs, outputs;
} Linear;

static long span_of(const Linear *s) { return up(s->batch, 2 * V); }

/* rows of one base, (batch, features) with so many numbers between them, into (features, span), and back */
static void turn(const float *from, long step, long batch, long features, float *to, long span)
{
    for (long start = 0; start < features; start += V)
        for (long n = 0; n < batch; n++)
            for (long i = start; i < least(start + V, features); i++) to[i * span + n] = from[n * step + i];
}

static void turn_back(const float *from, long span, long batch, long features, float *to, long step)
{
    for (long start = 0; start < features; start += V)
        for (long n = 0; n < batch; n++)
            for (long i = start; i < least(start + V, features); i++) to[n * step + i] = from[i * span + n];
}

/* out[c][n] = sum of x[i][n] * w[c*across + i*along], for C rows and two vectors of samples */
INLINE void rows_of(const int C, const float *x, long count, const float *w, long across, long along, float *out,
                    long span)
{
    vec sum[WIDE][2];
    UNROLL for (int c = 0; c < C; c++) sum[c][0] = sum[c][1] = (vec){};
    for (long i = 0; i < count; i++, x += span, w += along) {
        vec a = *(const vec *)x, b = *(const vec *)(x + V);
        __builtin_prefetch(w + 24 * along);
        UNROLL for (int c = 0; c < C; c++) {
            float weight = w[c * across];
            sum[c][0] += a * weight, sum[c][1] += b * weight;
        }
    }
    UNROLL for (int c = 0; c < C; c++) *(vec *)(out + c * span) = sum[c][0], *(vec *)(out + c * span + V) = sum[c][1];
}

static void product(const float *x, long count, const float *w, long rows, long across, long along, float *out,
                    long span)
{
    long c = 0;
    for (; c + WIDE <= rows; c += WIDE)
        for (long n = 0; n < span; n += 2 * V)
            rows_of(WIDE, x + n, count, w + c * across, across, along, out + c * span + n, span);
    for (; c < rows; c++)
        for (long n = 0; n < span; n += 2 * V)
            rows_of(1, x + n, count, w + c * across, across, along, out + c * span + n, span);
}

/* to[c][i] = sum over samples of slope[c][n] * x[n][i], for C outputs and P vectors of inputs */
INLINE void slopes_of(const int C, const int P, const float *x, long step, const float *slope, long span, long batch,
                      float *to, long row)
{
    vec sum[4][4];
    UNROLL for (int c = 0; c < C; c++) UNROLL for (int p = 0; p < P; p++) sum[c][p] = (vec){};
    for (long n = 0; n < batch; n++, x += step) {
        vec at[4];
        UNROLL for (int p = 0; p < P; p++) at[p] = *(const vec *)(x + p * V);
        UNROLL for (int c = 0; c < C; c++) {
            float g = slope[c * span + n];
            UNROLL for (int p = 0; p < P; p++) sum[c][p] += at[p] * g;
        }
    }
    UNROLL for (int c = 0; c < C; c++) UNROLL for (int p = 0; p < P; p++) *(vec *)(to + c * row + p * V) = sum[c][p];
}

#if V == 16
#define TALL 4
#define BROAD 4
#else
#define TALL 2
#define BROAD 4
#endif

static void outer(const float *x, long wide, const float *slope, long span, long batch, long outputs, long inputs,
                  float *to)
{
    float last[V];
    long c = 0, i, whole = inputs / V * V;
    for (; c + TALL <= outputs; c += TALL) {
        float *out = to + c * inputs;
        for (i = 0; i + BROAD * V <= inputs; i += BROAD * V)
            slopes_of(TALL, BROAD, x + i, wide, slope + c * span, span, batch, out + i, inputs);
        for (; i < whole; i += V) slopes_of(TALL, 1, x + i, wide, slope + c * span, span, batch, out + i, inputs);
    }
    for (; c < outputs; c++)
        for (i = 0; i < whole; i += V) slopes_of(1, 1, x + i, wide, slope + c * span, span, batch, to + c * inputs + i, inputs);
    for (c = 0; c < outputs && whole < inputs; c++) {
        slopes_of(1, 1, x + whole, wide, slope + c * span, span, batch, last, 0);
        for (i = whole; i < inputs; i++) to[c * inputs + i] = last[i - whole];
    }
}

long span_for(const Linear *s) { return span_of(s); }

/* y = relu(norm(linear(x))); `z`, (base, output, span), keeps what goes into the norm. 0: done; 1: no memory. */
int linear_forward(const Linear *s, const float *x, const float *weight, const float *bias, const float *gain,
                   const float *shift, float eps, float *z, float *y, float *mean, float *var)
{
    long span = span_of(s), in = s->inputs, out = s->outputs;
    float *turned = room(in * span), *result = room(out * span);
    int failed = !turned || !result;
    for (long b = 0; b < s->bases && !failed; b++) {
        float *to = z + b * out * span;
        turn(x + b * in, s->bases * in, s->batch, in, turned, span);
        product(turned, in, weight + b * out * in, out, in, 1, to, span);
        for (long o = 0; o < out; o++, to += span) {
            long c = b * out + o;
            vec one = {}, two = {};
            for (long n = 0; n < s->batch; n++) to[n] += bias[c];
            for (long n = 0; n < span; n += V) one += *(vec *)(to + n);
            mean[c] = total(one) / s->batch;
            for (long n = s->batch; n < span; n++) to[n] = mean[c];
            for (long n = 0; n < span; n += V) {
                vec v = *(vec *)(to + n) - mean[c];
                two += v * v;
            }
            for (long n = s->batch; n < span; n++) to[n] = 0;
            var[c] = total(two) / s->batch;
            float a = gain[c] / sqrtf(var[c] + eps), d = shift[c] - a * mean[c];
            for (long n = 0; n < s->batch; n++) {
                float v = a * to[n] + d;
                result[o * span + n] = v > 0 ? v : 0;
            }
        }
        turn_back(result, span, s->batch, out, y + b * out, s->bases * out);
    }
    free(turned), free(result);
    return failed;
}

/* The slopes of everything that `linear_forward` was given; those of samples only if `gx`. */
int linear_backward(const Linear *s, const float *gy, const float *x, const float *weight, const float *gain,
                    float eps, const float *z, const float *y, const float *mean, const float *var, float *gx,
                    float *gweight, float *gbias, float *ggain, float *gshift)
{
    long span = span_of(s), in = s->inputs, out = s->outputs, wide = up(in, V);
    float *slope = room(out * span), *back = room(in * span), *compact = room(s->batch * wide), *hot = room(out * span);
    int failed = !slope || !back || !compact || !hot;
    for (long b = 0; b < s->bases && !failed; b++) {
        turn(gy + b * out, s->bases * out, s->batch, out, slope, span);
        turn(y + b * out, s->bases * out, s->batch, out, hot, span);
        for (long o = 0; o < out; o++) {
            long c = b * out + o;
            const float *at = z + c * span;
            float *g = slope + o * span, *on = hot + o * span, inv = 1 / sqrtf(var[c] + eps), m = mean[c];
            vec one = {}, two = {};
            for (long n = 0; n < span; n += V) {
                vec v = where_positive(*(vec *)(on + n), *(vec *)(g + n));
                *(vec *)(g + n) = v;
                one += v, two += v * ((*(const vec *)(at + n) - m) * inv);
            }
            float a = gain[c] * inv;
            gshift[c] = total(one), ggain[c] = total(two), gbias[c] = 0;
            float c1 = -a * inv * ggain[c] / s->batch, c0 = -a * gshift[c] / s->batch - c1 * m;
            for (long n = 0; n < s->batch; n++) g[n] = a * g[n] + (c0 + c1 * at[n]);
        }
        for (long n = 0; n < s->batch; n++) copy_row(x + (n * s->bases + b) * in, compact + n * wide, in);
        outer(compact, wide, slope, span, s->batch, out, in, gweight + b * out * in);
        if (gx) {
            product(slope, out, weight + b * out * in, in, 1, in, back, span);
            turn_back(back, span, s->batch, in, gx + b * in, s->bases * in);
        }
    }
    free(slope), free(back), free(compact), free(hot);
    return failed;
}
