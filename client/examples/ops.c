/* SPDX-License-Identifier: MIT */
#include "client/examples/ops.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

void multiply(float *out, size_t stride, float scale, struct view a, struct view b)
{
    const size_t rows = a.turned ? a.cols : a.rows, inner = a.turned ? a.rows : a.cols;
    const size_t cols = b.turned ? b.rows : b.cols;

    cblas_sgemm(CblasRowMajor, a.turned ? CblasTrans : CblasNoTrans,
                b.turned ? CblasTrans : CblasNoTrans, (int)rows, (int)cols, (int)inner, scale, a.at,
                (int)a.stride, b.at, (int)b.stride, 0, out, (int)stride);
}

void add(float *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

static void sum_rows(float *out, struct view in)
{
    memset(out, 0, in.cols * sizeof *out);
    for (size_t i = 0; i < in.rows; i++)
        add(out, in.at + i * in.stride, in.cols);
}

/* ---- linear ---------------------------------------------------------------------------------- */

void linear_forward(float *out, struct view in, const float *const w[2], size_t outs)
{
    multiply(out, outs, 1, in, view(w[0], in.cols, outs));
    for (size_t i = 0; i < in.rows; i++)
        add(out + i * outs, w[1], outs);
}

void linear_backward(float *d_in, float *const g[2], struct view in, struct view d_out,
                     const float *w)
{
    multiply(g[0], d_out.cols, 1, turned(in), d_out);
    sum_rows(g[1], d_out);
    multiply(d_in, in.cols, 1, d_out, turned(view(w, in.cols, d_out.cols)));
}

/* ---- normalisation and activation ------------------------------------------------------------ */

void norm_forward(const struct norm *norm, struct view in, const float *const w[2])
{
    const size_t n = in.cols;

    for (size_t i = 0; i < in.rows; i++) {
        const float *x = in.at + i * n;
        float *out = norm->out + i * n, *hat = norm->hat + i * n;
        float mean = 0, variance = 0;
        for (size_t j = 0; j < n; j++)
            mean += x[j];
        mean /= (float)n;
        for (size_t j = 0; j < n; j++)
            variance += (x[j] - mean) * (x[j] - mean);
        const float rstd = 1 / sqrtf(variance / (float)n + 1e-5f);
        for (size_t j = 0; j < n; j++) {
            hat[j] = (x[j] - mean) * rstd;
            out[j] = hat[j] * w[0][j] + w[1][j];
        }
        norm->rstd[i] = rstd;
    }
}

void norm_backward(float *d_in, float *const g[2], const struct norm *norm, struct view d_out,
                   const float *gain)
{
    const size_t n = d_out.cols;

    memset(g[0], 0, n * sizeof(float));
    memset(g[1], 0, n * sizeof(float));
    for (size_t i = 0; i < d_out.rows; i++) {
        const float *dy = d_out.at + i * n, *hat = norm->hat + i * n;
        float mean = 0, slant = 0;
        for (size_t j = 0; j < n; j++) {
            mean += dy[j] * gain[j];
            slant += dy[j] * gain[j] * hat[j];
            g[0][j] += dy[j] * hat[j];
            g[1][j] += dy[j];
        }
        mean /= (float)n;
        slant /= (float)n;
        for (size_t j = 0; j < n; j++)
            d_in[i * n + j] += norm->rstd[i] * (dy[j] * gain[j] - mean - hat[j] * slant);
    }
}

/* x/2 (1 + tanh u) is x times the logistic function of 2u: one exponential, and no cancellation. */
void gelu_forward(float *x, float *slope, size_t count)
{
    const float c = 0.79788456f; /* sqrt(2 / pi) */

    for (size_t i = 0; i < count; i++) {
        const float v = x[i], square = v * v;
        const float u2 = 2 * c * v * (1 + 0.044715f * square);
        const float du2 = 2 * c * (1 + 3 * 0.044715f * square);
        const float s = 1 / (1 + expf(-u2));
        x[i] = v * s;
        slope[i] = s + v * s * (1 - s) * du2;
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

/* What one head of one sequence sees. */
struct head {
    struct view q, k, v, weight;
    float *mix;
    size_t place; /* of q in qkv, for gradients */
};

static struct head head_at(const struct attention *a, size_t sequence, size_t h)
{
    const size_t width = a->heads * a->size;
    const size_t place = sequence * a->seq * 3 * width + h * a->size;
    const float *weight = a->weight + (sequence * a->heads + h) * a->seq * a->seq;
    struct view q = { a->qkv + place, a->seq, a->size, 3 * width, false }, k = q, v = q;

    k.at += width;
    v.at += 2 * width;
    return (struct head){ .q = q,
                          .k = k,
                          .v = v,
                          .weight = view(weight, a->seq, a->seq),
                          .mix = a->mix + sequence * a->seq * width + h * a->size,
                          .place = place };
}

/* Row t sees keys 0 to t. */
static void causal_softmax(float *score, size_t seq)
{
    for (size_t t = 0; t < seq; t++, score += seq) {
        float max = score[0], sum = 0;
        for (size_t u = 1; u <= t; u++)
            max = score[u] > max ? score[u] : max;
        for (size_t u = 0; u <= t; u++) {
            score[u] = expf(score[u] - max);
            sum += score[u];
        }
        for (size_t u = 0; u <= t; u++)
            score[u] /= sum;
        memset(score + t + 1, 0, (seq - t - 1) * sizeof *score);
    }
}

/* Gradient of the weights to gradient of the scores, in place. */
static void softmax_backward(float *d, const float *weight, size_t seq)
{
    for (size_t t = 0; t < seq; t++, d += seq, weight += seq) {
        float dot = 0;
        for (size_t u = 0; u <= t; u++)
            dot += d[u] * weight[u];
        for (size_t u = 0; u < seq; u++)
            d[u] = weight[u] * (d[u] - dot);
    }
}

void attention_forward(const struct attention *a, size_t sequences)
{
    const float scale = 1 / sqrtf((float)a->size);

    for (size_t i = 0; i < sequences * a->heads; i++) {
        struct head head = head_at(a, i / a->heads, i % a->heads);
        float *weight = a->weight + i * a->seq * a->seq;
        multiply(weight, a->seq, scale, head.q, turned(head.k));
        causal_softmax(weight, a->seq);
        multiply(head.mix, a->heads * a->size, 1, head.weight, head.v);
    }
}

void attention_backward(float *d_qkv, const float *d_mix, const struct attention *a,
                        size_t sequences, float *d_weight)
{
    const float scale = 1 / sqrtf((float)a->size);
    const size_t width = a->heads * a->size, stride = 3 * width;

    for (size_t i = 0; i < sequences * a->heads; i++) {
        struct head head = head_at(a, i / a->heads, i % a->heads);
        struct view d_head = { d_mix + (head.mix - a->mix), a->seq, a->size, width, false };
        struct view d_score = view(d_weight, a->seq, a->seq);
        float *d_q = d_qkv + head.place, *d_k = d_q + width, *d_v = d_k + width;
        multiply(d_v, stride, 1, turned(head.weight), d_head);
        multiply(d_weight, a->seq, 1, d_head, turned(head.v));
        softmax_backward(d_weight, head.weight.at, a->seq);
        multiply(d_q, stride, scale, d_score, head.k);
        multiply(d_k, stride, scale, turned(d_score), head.q);
    }
}

/* ---- loss ------------------------------------------------------------------------------------ */

double cross_entropy(float *logits, const uint8_t *target, size_t rows, size_t cols, double scale)
{
    double loss = 0;

    for (size_t i = 0; i < rows; i++) {
        float *x = logits + i * cols, max = x[0];
        double sum = 0;
        for (size_t j = 1; j < cols; j++)
            max = x[j] > max ? x[j] : max;
        loss -= (double)(x[target[i]] - max);
        for (size_t j = 0; j < cols; j++) {
            const double e = exp((double)(x[j] - max));
            x[j] = (float)e;
            sum += e;
        }
        loss += log(sum);
        for (size_t j = 0; j < cols; j++)
            x[j] = (float)(scale * (double)x[j] / sum / (double)rows);
        x[target[i]] -= (float)(scale / (double)rows);
    }
    return loss / (double)rows;
}
