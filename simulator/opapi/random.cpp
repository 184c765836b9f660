// Random numbers, dropout, and tensors made from nothing.
#include "dropout.h"
#include "operator.h"

using namespace simulated;

ACLNN(Arange, (Number begin, Number end, Number step, Out out), const at::Tensor target = *out;
      out = at::arange(*begin, *end, *step, target.options()).slice(0, 0, target.numel()))
ACLNN(Linspace, (Number begin, Number end, int64_t steps, Out out), out = at::linspace(*begin, *end, steps))
ACLNN(Eye, (int64_t rows, int64_t columns, Out out), out = at::eye(rows, columns))

ACLNN(InplaceNormal, (InOut a, float mean, float deviation, int64_t seed, int64_t offset),
      (*a).normal_(mean, deviation, generator(seed, offset)))
ACLNN(InplaceUniform, (InOut a, double from, double to, uint64_t seed, uint64_t offset),
      (*a).uniform_(from, to, generator(static_cast<int64_t>(seed), static_cast<int64_t>(offset))))
ACLNN(InplaceRandom, (InOut a, int64_t from, int64_t to, int64_t seed, int64_t offset),
      (*a).random_(from, to, generator(seed, offset)))
ACLNN(InplaceBernoulli, (InOut a, Number p, int64_t seed, int64_t offset),
      (*a).bernoulli_((*p).toDouble(), generator(seed, offset)))
ACLNN(Randperm, (int64_t n, int64_t seed, int64_t offset, Out out), out = at::randperm(n, generator(seed, offset)))
ACLNN(Multinomial, (In a, int64_t samples, bool replacement, int64_t seed, int64_t offset, Out out),
      out = at::multinomial(*a, samples, replacement, generator(seed, offset)))

at::Tensor simulated::unpacked(const at::Tensor& mask, at::IntArrayRef sizes) {
    const at::Tensor bits =
        at::bitwise_right_shift(mask.flatten().unsqueeze(1), at::arange(8, at::kByte)).bitwise_and(1);
    return bits.flatten().slice(0, 0, c10::multiply_integers(sizes)).reshape(sizes).to(at::kBool);
}

namespace {

at::Tensor packed_mask(const at::Tensor& bytes, double p, int64_t seed, int64_t offset) {
    const at::Tensor kept =
        at::empty({bytes.numel(), 8}, at::kFloat).bernoulli_(1 - p, generator(seed, offset)).to(at::kByte);
    const at::Tensor weights = at::bitwise_left_shift(at::ones({8}, at::kByte), at::arange(8, at::kByte));
    return (kept * weights).sum(1, false, at::kByte).reshape(bytes.sizes());
}

}  // namespace

ACLNN(DropoutGenMaskV2, (Ints, double p, int64_t seed, int64_t offset, int, Out mask),
      mask = packed_mask(*mask, p, seed, offset))
ACLNN(DropoutGenMask, (Ints, double p, int64_t seed, int64_t offset, Out mask),
      mask = packed_mask(*mask, p, seed, offset))
ACLNN(DropoutDoMask, (In a, In mask, double p, Out out),
      out = p < 1 ? *a * unpacked(*mask, (*a).sizes()) / (1 - p) : at::zeros_like(*a))
