// Gathering, scattering, embedding, and joining and cutting tensors.
#include "operator.h"

using namespace simulated;

namespace {

// torch_npu marks a dimension without an index by an empty tensor, and narrows some indices to int32.
c10::List<std::optional<at::Tensor>> indices(Ins tensors) {
    c10::List<std::optional<at::Tensor>> list;
    for (const at::Tensor& index : *tensors) {
        if (!index.defined() || (index.dim() == 1 && index.numel() == 0)) {
            list.push_back(std::nullopt);
        } else {
            list.push_back(index.scalar_type() == at::kInt ? index.to(at::kLong) : index);
        }
    }
    return list;
}

at::Tensor wide(In index) { return (*index).to(at::kLong); }

}  // namespace

ACLNN(Embedding, (In weight, In index, Out out), out = at::embedding(*weight, *index))
ACLNN(EmbeddingDenseBackward, (In gradient, In index, uint64_t rows, uint64_t padding, bool scale, Out out),
      out = at::embedding_dense_backward(*gradient, wide(index), static_cast<int64_t>(rows),
                                         static_cast<int64_t>(padding), scale))

ACLNN(Gather, (In a, int64_t dim, In index, Out out), out = at::gather(*a, dim, wide(index)))
ACLNN(Scatter, (In a, int64_t dim, In index, In source, int64_t, Out out),
      out = at::scatter(*a, dim, wide(index), *source))
ACLNN(ScatterValue, (In a, int64_t dim, In index, Number value, int64_t, Out out),
      out = at::scatter(*a, dim, wide(index), *value))
ACLNN(InplaceScatter, (InOut a, int64_t dim, In index, In source, int64_t), (*a).scatter_(dim, wide(index), *source))
ACLNN(InplaceScatterValue, (InOut a, int64_t dim, In index, Number value, int64_t),
      (*a).scatter_(dim, wide(index), *value))
ACLNN(ScatterAdd, (In a, int64_t dim, In index, In source, Out out),
      out = at::scatter_add(*a, dim, wide(index), *source))
ACLNN(IndexSelect, (In a, int64_t dim, In index, Out out), out = at::index_select(*a, dim, *index))
ACLNN(IndexAdd, (In a, int64_t dim, In index, In source, Number alpha, Out out),
      out = at::index_add(*a, dim, wide(index), *source, *alpha))
ACLNN(Index, (In a, Ins index, Out out), out = at::index(*a, indices(index)))
ACLNN(IndexPutImpl, (InOut a, Ins index, In values, bool accumulate, bool unsafe), at::Tensor target = *a;
      at::_index_put_impl_(target, indices(index), *values, accumulate, unsafe))

// The size of these outputs is known after the run only: torch_npu brings the largest and reads the size back.
#define OF_UNKNOWN_SIZE(OUT, RESULT)                                             \
    const at::Tensor result = RESULT;                                            \
    auto* described = const_cast<aclTensor*>((OUT).described);                   \
    described->sizes.assign(result.sizes().begin(), result.sizes().end());       \
    described->strides.assign(result.strides().begin(), result.strides().end()); \
    OUT = result
ACLNN(MaskedSelect, (In a, In mask, Out out), OF_UNKNOWN_SIZE(out, at::masked_select(*a, *mask)))
ACLNN(Nonzero, (In a, Out out), OF_UNKNOWN_SIZE(out, at::nonzero(*a).contiguous()))
// One column for each element found, where the first version has one row.
ACLNN(NonzeroV2, (In a, Out out), OF_UNKNOWN_SIZE(out, at::nonzero(*a).t().contiguous()))

ACLNN(Cat, (Ins tensors, int64_t dim, Out out), out = at::cat(*tensors, dim))
ACLNN(Stack, (Ins tensors, int64_t dim, Out out), out = at::stack(*tensors, dim))
ACLNN(Flip, (In a, Ints dims, Out out), out = at::flip(*a, *dims))
ACLNN(Roll, (In a, Ints shifts, Ints dims, Out out), out = at::roll(*a, *shifts, *dims))
ACLNN(Repeat, (In a, Ints repeats, Out out), out = (*a).repeat(*repeats))
ACLNN(RepeatInterleave, (In a, In repeats, int64_t size, Out out),
      out = at::repeat_interleave(*a, wide(repeats), std::nullopt, size))
ACLNN(RepeatInterleaveInt, (In a, int64_t repeats, int64_t size, Out out),
      out = at::repeat_interleave(*a, repeats, std::nullopt, size))
ACLNN(RepeatInterleaveIntWithDim, (In a, int64_t repeats, int64_t dim, int64_t size, Out out),
      out = at::repeat_interleave(*a, repeats, dim, size))
ACLNN(Tril, (In a, int64_t diagonal, Out out), out = at::tril(*a, diagonal))
ACLNN(Triu, (In a, int64_t diagonal, Out out), out = at::triu(*a, diagonal))
ACLNN(OneHot, (In a, int64_t classes, In on, In off, int64_t axis, Out out),
      const at::Tensor hot = at::one_hot(wide(a), classes).to((*out).scalar_type());
      const at::Tensor spread = *off + hot * (*on - *off); out = axis < 0 ? spread : spread.movedim(-1, axis))
