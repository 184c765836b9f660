// Fused attention: what torch_npu makes of scaled_dot_product_attention. Computed as written in the paper, in float.
#include <cstring>
#include <stdexcept>
#include <string>

#include "dropout.h"
#include "operator.h"

using namespace simulated;

namespace {

enum class Layout { BSH, SBH, BSND, BNSD };

Layout layout_of(const std::string& name) {
    if (name == "BSH") return Layout::BSH;
    if (name == "SBH") return Layout::SBH;
    if (name == "BSND") return Layout::BSND;
    if (name == "BNSD") return Layout::BNSD;
    throw std::runtime_error("layout " + name + " is not simulated");
}

// -> (batch, heads, length, width), a view.
at::Tensor to_bnsd(const at::Tensor& a, Layout layout, int64_t width) {
    switch (layout) {
        case Layout::BSH:
            return a.view({a.size(0), a.size(1), -1, width}).transpose(1, 2);
        case Layout::SBH:
            return a.view({a.size(0), a.size(1), -1, width}).permute({1, 2, 0, 3});
        case Layout::BSND:
            return a.transpose(1, 2);
        case Layout::BNSD:
            break;
    }
    return a;
}

at::Tensor from_bnsd(const at::Tensor& a, Layout layout) {
    switch (layout) {
        case Layout::BSH:
            return a.transpose(1, 2).flatten(2);
        case Layout::SBH:
            return a.permute({2, 0, 1, 3}).flatten(2);
        case Layout::BSND:
            return a.transpose(1, 2);
        case Layout::BNSD:
            break;
    }
    return a;
}

int64_t width_of(const at::Tensor& query, Layout layout, int64_t heads) {
    return layout == Layout::BSH || layout == Layout::SBH ? query.size(2) / heads : query.size(3);
}

// Key and value may have fewer heads than the query (grouped queries): each serves several.
at::Tensor repeated(const at::Tensor& a, int64_t heads) { return a.repeat_interleave(heads / a.size(1), 1); }

at::Tensor summed_back(const at::Tensor& gradient, int64_t heads) {
    return gradient.view({gradient.size(0), heads, -1, gradient.size(2), gradient.size(3)}).sum(2);
}

struct Attention {
    Layout layout;
    int64_t heads;
    double scale;
    double keep;  // 1 - dropout
    int64_t sparse_mode;
};

enum SparseMode : int64_t { DEFAULT_MASK = 0, ALL_MASK = 1, LEFT_UP_CAUSAL = 2, RIGHT_DOWN_CAUSAL = 3 };

struct Scores {
    at::Tensor query, key, value;  // (batch, heads, length, width), float, heads of the query
    at::Tensor scaled;             // query key^T scale, masked
};

Scores scores(const Attention& how, In query, In key, In value, MaybeIn mask) {
    const int64_t width = width_of(*query, how.layout, how.heads);
    Scores found;
    found.query = to_bnsd(*query, how.layout, width).to(at::kFloat);
    found.key = repeated(to_bnsd(*key, how.layout, width).to(at::kFloat), how.heads);
    const int64_t value_width = how.layout == Layout::BSND || how.layout == Layout::BNSD ? (*value).size(3) : width;
    found.value = repeated(to_bnsd(*value, how.layout, value_width).to(at::kFloat), how.heads);
    found.scaled = at::matmul(found.query, found.key.transpose(2, 3)) * how.scale;
    const int64_t rows = found.scaled.size(2), columns = found.scaled.size(3);
    const std::optional<at::Tensor> given = mask;
    at::Tensor hidden;
    switch (how.sparse_mode) {
        case DEFAULT_MASK:
        case ALL_MASK:
            hidden = given.value_or(at::Tensor());
            break;
        // With these two the given mask is a triangle of 2048 x 2048 that stands for any size.
        case LEFT_UP_CAUSAL:
            hidden = at::ones({rows, columns}, at::kBool).triu(1);
            break;
        case RIGHT_DOWN_CAUSAL:
            hidden = at::ones({rows, columns}, at::kBool).triu(columns - rows + 1);
            break;
        default:
            throw std::runtime_error("sparse mode " + std::to_string(how.sparse_mode) + " is not simulated");
    }
    if (hidden.defined() && hidden.numel() > 0) {
        found.scaled = found.scaled.masked_fill(hidden.to(at::kBool), -std::numeric_limits<float>::infinity());
    }
    return found;
}

// What dropout multiplies the probabilities with; undefined where nothing is dropped.
at::Tensor dropped(const Attention& how, MaybeIn mask, const at::Tensor& probabilities) {
    const std::optional<at::Tensor> bits = mask;
    if (!bits || bits->numel() == 0 || how.keep >= 1) {
        return {};
    }
    return unpacked(*bits, probabilities.sizes()).to(at::kFloat) / how.keep;
}

void refuse(MaybeIn bias) {
    if (bias.described != nullptr) {
        throw std::runtime_error("a position bias (pse) is not simulated");
    }
}

void forward(const Attention& how, In query, In key, In value, MaybeIn drop_mask, MaybeIn mask, Out maximum, Out sum,
             Out out) {
    const Scores found = scores(how, query, key, value, mask);
    const at::Tensor largest = found.scaled.amax(3, true);
    const at::Tensor total = (found.scaled - largest).exp().sum(3, true);
    at::Tensor probabilities = found.scaled.softmax(3);
    const at::Tensor kept = dropped(how, drop_mask, probabilities);
    if (kept.defined()) {
        probabilities = probabilities * kept;
    }
    maximum = largest;
    sum = total;
    out = from_bnsd(at::matmul(probabilities, found.value), how.layout);
}

void backward(const Attention& how, In query, In key, In value, In gradient, MaybeIn drop_mask, MaybeIn mask,
              Out to_query, Out to_key, Out to_value) {
    const Scores found = scores(how, query, key, value, mask);
    const at::Tensor probabilities = found.scaled.softmax(3);
    const at::Tensor kept = dropped(how, drop_mask, probabilities);
    const at::Tensor dy = to_bnsd(*gradient, how.layout, found.value.size(3)).to(at::kFloat);
    at::Tensor to_probabilities = at::matmul(dy, found.value.transpose(2, 3));
    const at::Tensor used = kept.defined() ? probabilities * kept : probabilities;
    if (kept.defined()) {
        to_probabilities = to_probabilities * kept;
    }
    const at::Tensor to_scores =
        probabilities * (to_probabilities - (to_probabilities * probabilities).sum(3, true)) * how.scale;
    const int64_t key_heads = to_bnsd(*key, how.layout, found.query.size(3)).size(1);
    to_query = from_bnsd(at::matmul(to_scores, found.key), how.layout);
    to_key = from_bnsd(summed_back(at::matmul(to_scores.transpose(2, 3), found.query), key_heads), how.layout);
    to_value = from_bnsd(summed_back(at::matmul(used.transpose(2, 3), dy), key_heads), how.layout);
}

// Inference: no gradient follows, keys and values come as lists of one.
void infer(const Attention& how, In query, Ins keys, Ins values, MaybeIn mask, Out out) {
    const In key{keys.described->members.at(0)};
    const In value{values.described->members.at(0)};
    const Scores found = scores(how, query, key, value, mask);
    out = from_bnsd(at::matmul(found.scaled.softmax(3), found.value), how.layout);
}

}  // namespace

// Not ACLNN: the text of the layout is gone when the operator runs, so it is read when it is prepared.
#define ACLNN_ATTENTION(NAME, KEEP, PARAMETERS, ...)                                             \
    SIM_API int aclnn##NAME##GetWorkspaceSize(SIMULATED_UNPACK PARAMETERS, uint64_t* workspace_, \
                                              aclOpExecutor** executor_) {                       \
        const std::string name = layout;                                                         \
        return simulated::prepare(                                                               \
            "aclnn" #NAME, 8 * MIB,                                                              \
            [=]() {                                                                              \
                refuse(bias);                                                                    \
                const Attention how{layout_of(name), heads, scale, KEEP, sparse_mode};           \
                __VA_ARGS__;                                                                     \
            },                                                                                   \
            workspace_, executor_);                                                              \
    }                                                                                            \
    SIM_API int aclnn##NAME(void*, uint64_t, aclOpExecutor* executor_, void* stream_) {          \
        return simulated::launch(executor_, stream_);                                            \
    }

ACLNN_ATTENTION(FlashAttentionScore, keep,
                (In query, In key, In value, MaybeIn bias, MaybeIn drop_mask, MaybeIn /*padding*/, MaybeIn mask,
                 Ints /*prefix*/, double scale, double keep, int64_t /*before*/, int64_t /*after*/, int64_t heads,
                 const char* layout, int64_t /*precision*/, int64_t sparse_mode, Out maximum, Out sum, Out /*softmax*/,
                 Out out),
                forward(how, query, key, value, drop_mask, mask, maximum, sum, out))

ACLNN_ATTENTION(FlashAttentionScoreGrad, keep,
                (In query, In key, In value, In gradient, MaybeIn bias, MaybeIn drop_mask, MaybeIn /*padding*/,
                 MaybeIn mask, MaybeIn /*maximum*/, MaybeIn /*sum*/, MaybeIn /*softmax*/, MaybeIn /*out*/,
                 Ints /*prefix*/, double scale, double keep, int64_t /*before*/, int64_t /*after*/, int64_t heads,
                 const char* layout, int64_t /*precision*/, int64_t sparse_mode, Out to_query, Out to_key, Out to_value,
                 Out /*to_bias*/),
                backward(how, query, key, value, gradient, drop_mask, mask, to_query, to_key, to_value))

// Quantisation, paged keys, shared prefixes and rotation inside the operator are not simulated: their parameters are
// there to count.
ACLNN_ATTENTION(FusedInferAttentionScoreV2, 1,
                (In query, Ins keys, Ins values, MaybeIn bias, MaybeIn mask, Ints, Ints, MaybeIn, MaybeIn, MaybeIn,
                 MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn,
                 MaybeIn, MaybeIn, Ints, int64_t heads, double scale, int64_t, int64_t, const char* layout, int64_t,
                 int64_t sparse_mode, int64_t, int64_t, int64_t, bool, int64_t, int64_t, Out out, Out),
                infer(how, query, keys, values, mask, out))
ACLNN_ATTENTION(FusedInferAttentionScoreV3, 1,
                (In query, Ins keys, Ins values, MaybeIn bias, MaybeIn mask, Ints, Ints, MaybeIn, MaybeIn, MaybeIn,
                 MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn, MaybeIn,
                 MaybeIn, MaybeIn, Ints, MaybeIn, MaybeIn, MaybeIn, int64_t heads, double scale, int64_t, int64_t,
                 const char* layout, int64_t, int64_t sparse_mode, int64_t, int64_t, int64_t, bool, int64_t, int64_t,
                 Out out, Out),
                infer(how, query, keys, values, mask, out))
