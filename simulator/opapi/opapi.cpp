// libopapi.so (simulated operator library): every aclnn operator is computed by PyTorch's own CPU kernel on the
// "device" memory (which is host memory here), launched as a simulated kernel on the stream.
#include "cann.h"
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

typedef int aclError;
extern "C" aclError aclrtLaunchKernelWithHostArgs(void *, uint32_t, void *, void *, void *, size_t, void *, size_t);

struct aclTensor { std::vector<int64_t> sizes, strides; int dtype; int64_t offset; char *data; };
struct aclScalar { int dtype; char v[16]; };
struct aclIntArray { std::vector<int64_t> v; };
struct aclFloatArray { std::vector<float> v; };
struct aclBoolArray { std::vector<char> v; };
struct aclTensorList { std::vector<const aclTensor *> v; };
struct aclScalarList { std::vector<const aclScalar *> v; };
struct aclOpExecutor { const char *name; std::function<void()> fn; };

static bool keepDescs() { static bool k = getenv("NPUSIM_ASYNC") && atoi(getenv("NPUSIM_ASYNC")); return k; }
SIM_API aclTensor *aclCreateTensor(const int64_t *vd, uint64_t nvd, int dt, const int64_t *st, int64_t off, int, const int64_t *, uint64_t, void *data)
{
    auto *t = new aclTensor{std::vector<int64_t>(vd, vd + nvd), {}, dt, off, (char *)data};
    if (st) t->strides.assign(st, st + nvd);
    return t;
}
static size_t dtBytes(int dt) { switch (dt) { case 0: case 3: case 8: return 4; case 1: case 6: case 7: case 27: return 2; case 9: case 10: case 11: case 16: return 8; case 17: return 16; default: return 1; } }
SIM_API aclScalar *aclCreateScalar(void *v, int dt) { auto *s = new aclScalar{dt, {}}; memcpy(s->v, v, dtBytes(dt)); return s; }
SIM_API aclIntArray *aclCreateIntArray(const int64_t *v, uint64_t n) { return new aclIntArray{std::vector<int64_t>(v, v + n)}; }
SIM_API aclFloatArray *aclCreateFloatArray(const float *v, uint64_t n) { return new aclFloatArray{std::vector<float>(v, v + n)}; }
SIM_API aclBoolArray *aclCreateBoolArray(const bool *v, uint64_t n) { return new aclBoolArray{std::vector<char>(v, v + n)}; }
SIM_API aclTensorList *aclCreateTensorList(const aclTensor *const *v, uint64_t n) { return new aclTensorList{std::vector<const aclTensor *>(v, v + n)}; }
SIM_API aclScalarList *aclCreateScalarList(const aclScalar *const *v, uint64_t n) { return new aclScalarList{std::vector<const aclScalar *>(v, v + n)}; }
SIM_API int aclDestroyTensor(const aclTensor *p) { if (!keepDescs()) delete p; return 0; }
SIM_API int aclDestroyScalar(const aclScalar *p) { if (!keepDescs()) delete p; return 0; }
SIM_API int aclDestroyIntArray(const aclIntArray *p) { if (!keepDescs()) delete p; return 0; }
SIM_API int aclDestroyFloatArray(const aclFloatArray *p) { if (!keepDescs()) delete p; return 0; }
SIM_API int aclDestroyBoolArray(const aclBoolArray *p) { if (!keepDescs()) delete p; return 0; }
SIM_API int aclDestroyTensorList(const aclTensorList *p) { if (p && !keepDescs()) { for (auto *t : p->v) delete t; delete p; } return 0; }
SIM_API int aclDestroyScalarList(const aclScalarList *p) { if (p && !keepDescs()) { for (auto *t : p->v) delete t; delete p; } return 0; }

namespace {
at::ScalarType st(int dt)
{
    switch (dt) {
        case 0: return at::kFloat; case 1: return at::kHalf; case 2: return at::kChar; case 3: return at::kInt;
        case 4: return at::kByte; case 6: return at::kShort; case 7: return at::kUInt16; case 8: return at::kUInt32;
        case 9: return at::kLong; case 10: return at::kUInt64; case 11: return at::kDouble; case 12: return at::kBool;
        case 16: return at::kComplexFloat; case 17: return at::kComplexDouble; case 27: return at::kBFloat16;
        default: throw std::runtime_error("npusim: data type " + std::to_string(dt));
    }
}
at::Tensor T(const aclTensor *t)
{
    if (!t) return {};
    auto ty = st(t->dtype);
    auto o = at::TensorOptions().dtype(ty).device(at::kCPU);
    if (!t->data) return at::empty(t->sizes, o);
    void *p = t->data + t->offset * (int64_t)c10::elementSize(ty);
    return t->strides.empty() ? at::from_blob(p, t->sizes, o) : at::from_blob(p, t->sizes, t->strides, o);
}
std::vector<at::Tensor> TL(const aclTensorList *l) { std::vector<at::Tensor> r; if (l) for (auto *t : l->v) r.push_back(T(t)); return r; }
at::Scalar S(const aclScalar *s)
{
    const void *p = s->v;
    switch (s->dtype) {
        case 0: return *(const float *)p; case 11: return *(const double *)p; case 3: return *(const int *)p; case 9: return *(const int64_t *)p;
        case 12: return *(const bool *)p; case 2: return *(const int8_t *)p; case 4: return *(const uint8_t *)p; case 6: return *(const int16_t *)p;
        case 1: return (float)*(const at::Half *)p; case 27: return (float)*(const at::BFloat16 *)p;
        case 16: return *(const c10::complex<float> *)p; case 17: return *(const c10::complex<double> *)p;
        default: throw std::runtime_error("npusim: scalar type " + std::to_string(s->dtype));
    }
}
at::IntArrayRef I(const aclIntArray *a) { return a ? at::IntArrayRef(a->v) : at::IntArrayRef(); }
c10::optional<at::Tensor> OT(const aclTensor *t) { return t ? c10::optional<at::Tensor>(T(t)) : c10::nullopt; }
void put(const aclTensor *o, const at::Tensor &v) { if (o) T(o).copy_(v); }
at::Generator gen(int64_t seed, int64_t off) { auto g = at::detail::createCPUGenerator((uint64_t)(seed + off)); return g; }

uint64_t wsBytes(uint64_t dflt) { static const char *v = getenv("NPUSIM_WORKSPACE"); return v && *v ? strtoull(v, nullptr, 0) : dflt; }
int prepare(const char *name, uint64_t *ws, aclOpExecutor **ex, uint64_t wsDflt, std::function<void()> fn)
{
    *ws = wsBytes(wsDflt);
    *ex = new aclOpExecutor{name, std::move(fn)};
    return 0;
}
int launch(aclOpExecutor *e, void *stream)
{
    SimKernel k{SIM_KERNEL_MAGIC, e->name, [](void *c) {
        auto *x = (aclOpExecutor *)c;
        at::NoGradGuard ng;
        at::AutoDispatchBelowADInplaceOrView below;
        try { x->fn(); } catch (const std::exception &err) { fprintf(stderr, "[npusim] kernel %s failed: %s\n", x->name, err.what()); abort(); }
        delete x; }, e};
    return aclrtLaunchKernelWithHostArgs(&k, 1, stream, nullptr, nullptr, 0, nullptr, 0);
}
}  // namespace

#define UNPACK(...) __VA_ARGS__
#define ACLNN_WS(NAME, WS, PARAMS, ...)                                                                                 \
    SIM_API int aclnn##NAME##GetWorkspaceSize(UNPACK PARAMS, uint64_t *ws_, aclOpExecutor **ex_)                        \
    { return prepare("aclnn" #NAME, ws_, ex_, WS, [=]() __VA_ARGS__); }                                                 \
    SIM_API int aclnn##NAME(void *, uint64_t, aclOpExecutor *e_, void *s_) { return launch(e_, s_); }
#define ACLNN(NAME, PARAMS, ...) ACLNN_WS(NAME, 0, PARAMS, __VA_ARGS__)
typedef const aclTensor *Tn; typedef const aclScalar *Sc; typedef const aclIntArray *Ia; typedef const aclTensorList *Tl;
typedef const aclBoolArray *Ba; typedef const aclScalarList *Sl;
constexpr uint64_t MB = 1ull << 20;

// ---- elementwise ----
ACLNN(Add, (Tn a, Tn b, Sc al, Tn o), { put(o, at::add(T(a), T(b), S(al))); })
ACLNN(Adds, (Tn a, Sc b, Sc al, Tn o), { put(o, at::add(T(a), S(b), S(al))); })
ACLNN(InplaceAdd, (Tn a, Tn b, Sc al), { T(a).add_(T(b), S(al)); })
ACLNN(InplaceAdds, (Tn a, Sc b, Sc al), { T(a).add_(S(b), S(al)); })
ACLNN(Sub, (Tn a, Tn b, Sc al, Tn o), { put(o, at::sub(T(a), T(b), S(al))); })
ACLNN(Subs, (Tn a, Sc b, Sc al, Tn o), { put(o, at::sub(T(a), S(b), S(al))); })
ACLNN(InplaceSub, (Tn a, Tn b, Sc al), { T(a).sub_(T(b), S(al)); })
ACLNN(InplaceSubs, (Tn a, Sc b, Sc al), { T(a).sub_(S(b), S(al)); })
ACLNN(Rsub, (Tn a, Tn b, Sc al, Tn o), { put(o, at::rsub(T(a), T(b), S(al))); })
ACLNN(Rsubs, (Tn a, Sc b, Sc al, Tn o), { put(o, at::rsub(T(a), S(b), S(al))); })
ACLNN(Mul, (Tn a, Tn b, Tn o), { put(o, at::mul(T(a), T(b))); })
ACLNN(Muls, (Tn a, Sc b, Tn o), { put(o, at::mul(T(a), S(b))); })
ACLNN(InplaceMul, (Tn a, Tn b), { T(a).mul_(T(b)); })
ACLNN(InplaceMuls, (Tn a, Sc b), { T(a).mul_(S(b)); })
ACLNN(Div, (Tn a, Tn b, Tn o), { put(o, at::div(T(a), T(b))); })
ACLNN(Divs, (Tn a, Sc b, Tn o), { put(o, at::div(T(a), S(b))); })
ACLNN(InplaceDiv, (Tn a, Tn b), { T(a).div_(T(b)); })
ACLNN(InplaceDivs, (Tn a, Sc b), { T(a).div_(S(b)); })
ACLNN(InplaceFillScalar, (Tn a, Sc v), { T(a).fill_(S(v)); })
ACLNN(InplaceFillTensor, (Tn a, Tn v), { T(a).fill_(T(v)); })
ACLNN(InplaceOne, (Tn a), { T(a).fill_(1); })
ACLNN(InplaceZero, (Tn a), { T(a).zero_(); })
ACLNN(InplaceCopy, (Tn d, Tn s), { T(d).copy_(T(s)); })
ACLNN(Cast, (Tn a, int, Tn o), { put(o, T(a)); })
ACLNN(Addcmul, (Tn a, Tn b, Tn c, Sc v, Tn o), { put(o, at::addcmul(T(a), T(b), T(c), S(v))); })
ACLNN(Addcdiv, (Tn a, Tn b, Tn c, Sc v, Tn o), { put(o, at::addcdiv(T(a), T(b), T(c), S(v))); })
ACLNN(InplaceAddcmul, (Tn a, Tn b, Tn c, Sc v), { T(a).addcmul_(T(b), T(c), S(v)); })
ACLNN(InplaceAddcdiv, (Tn a, Tn b, Tn c, Sc v), { T(a).addcdiv_(T(b), T(c), S(v)); })
ACLNN(Lerp, (Tn a, Tn e, Tn w, Tn o), { put(o, at::lerp(T(a), T(e), T(w))); })
ACLNN(Lerps, (Tn a, Tn e, Sc w, Tn o), { put(o, at::lerp(T(a), T(e), S(w))); })
ACLNN(InplaceLerp, (Tn a, Tn e, Tn w), { T(a).lerp_(T(e), T(w)); })
ACLNN(InplaceLerps, (Tn a, Tn e, Sc w), { T(a).lerp_(T(e), S(w)); })
ACLNN(PowTensorScalar, (Tn a, Sc e, Tn o), { put(o, at::pow(T(a), S(e))); })
ACLNN(PowTensorTensor, (Tn a, Tn e, Tn o), { put(o, at::pow(T(a), T(e))); })
ACLNN(Maximum, (Tn a, Tn b, Tn o), { put(o, at::maximum(T(a), T(b))); })
ACLNN(Minimum, (Tn a, Tn b, Tn o), { put(o, at::minimum(T(a), T(b))); })
ACLNN(SWhere, (Tn c, Tn a, Tn b, Tn o), { put(o, at::where(T(c), T(a), T(b))); })
ACLNN(InplaceMaskedFillScalar, (Tn a, Tn m, Sc v), { T(a).masked_fill_(T(m), S(v)); })
ACLNN(InplaceMaskedFillTensor, (Tn a, Tn m, Tn v), { T(a).masked_fill_(T(m), T(v)); })
#define UNARY(NAME, fn) ACLNN(NAME, (Tn a, Tn o), { put(o, at::fn(T(a))); })
UNARY(Relu, relu) UNARY(Neg, neg) UNARY(Exp, exp) UNARY(Sqrt, sqrt) UNARY(Rsqrt, rsqrt) UNARY(Abs, abs) UNARY(Tanh, tanh) UNARY(Sigmoid, sigmoid)
UNARY(Silu, silu) UNARY(Gelu, gelu) UNARY(Log, log) UNARY(Sin, sin) UNARY(Cos, cos) UNARY(Reciprocal, reciprocal) UNARY(IsFinite, isfinite)
UNARY(LogicalNot, logical_not) UNARY(BitwiseNot, bitwise_not) UNARY(Floor, floor) UNARY(Ceil, ceil) UNARY(Erf, erf) UNARY(Max, max) UNARY(Min, min)
#define INPLACE(NAME, fn) ACLNN(Inplace##NAME, (Tn a), { T(a).fn(); })
INPLACE(Relu, relu_) INPLACE(Neg, neg_) INPLACE(Exp, exp_) INPLACE(Sqrt, sqrt_) INPLACE(Rsqrt, rsqrt_) INPLACE(Reciprocal, reciprocal_) INPLACE(Tanh, tanh_) INPLACE(Sigmoid, sigmoid_)
#define CMP(NAME, fn) ACLNN(NAME##Tensor, (Tn a, Tn b, Tn o), { put(o, at::fn(T(a), T(b))); }) ACLNN(NAME##Scalar, (Tn a, Sc b, Tn o), { put(o, at::fn(T(a), S(b))); })
CMP(Eq, eq) CMP(Ne, ne) CMP(Gt, gt) CMP(Ge, ge) CMP(Lt, lt) CMP(Le, le)
ACLNN(LogicalAnd, (Tn a, Tn b, Tn o), { put(o, at::logical_and(T(a), T(b))); })
ACLNN(LogicalOr, (Tn a, Tn b, Tn o), { put(o, at::logical_or(T(a), T(b))); })
ACLNN(BitwiseAndTensor, (Tn a, Tn b, Tn o), { put(o, at::bitwise_and(T(a), T(b))); })
// ---- matrix ----
ACLNN_WS(Mm, 16 * MB, (Tn a, Tn b, Tn o, int8_t), { put(o, at::mm(T(a), T(b))); })
ACLNN_WS(Matmul, 16 * MB, (Tn a, Tn b, Tn o, int8_t), { put(o, at::matmul(T(a), T(b))); })
ACLNN_WS(BatchMatMul, 16 * MB, (Tn a, Tn b, Tn o, int8_t), { put(o, at::bmm(T(a), T(b))); })
ACLNN_WS(Addmm, 16 * MB, (Tn c, Tn a, Tn b, Sc be, Sc al, Tn o, int8_t), { put(o, at::addmm(T(c), T(a), T(b), S(be), S(al))); })
ACLNN_WS(InplaceAddmm, 16 * MB, (Tn c, Tn a, Tn b, Sc be, Sc al, int8_t), { T(c).addmm_(T(a), T(b), S(be), S(al)); })
ACLNN_WS(Baddbmm, 16 * MB, (Tn c, Tn a, Tn b, Sc be, Sc al, Tn o, int8_t), { put(o, at::baddbmm(T(c), T(a), T(b), S(be), S(al))); })
ACLNN(Mv, (Tn a, Tn b, Tn o, int8_t), { put(o, at::mv(T(a), T(b))); })
ACLNN(Dot, (Tn a, Tn b, Tn o), { put(o, at::dot(T(a), T(b))); })
// ---- reductions ----
ACLNN(ReduceSum, (Tn a, Ia d, bool k, int, Tn o), { auto t = T(o); t.copy_(at::sum(T(a), I(d), k, t.scalar_type())); })
ACLNN(Mean, (Tn a, Ia d, bool k, int, Tn o), { auto t = T(o); t.copy_(at::mean(T(a), I(d), k, t.scalar_type())); })
ACLNN(All, (Tn a, Ia d, bool k, Tn o), { auto t = T(a); for (auto i : I(d)) t = at::all(t, i, true); put(o, (k || !d) ? t : t.reshape(T(o).sizes())); })
ACLNN(Any, (Tn a, Ia d, bool k, Tn o), { auto t = T(a); for (auto i : I(d)) t = at::any(t, i, true); put(o, (k || !d) ? t : t.reshape(T(o).sizes())); })
ACLNN(ArgMax, (Tn a, int64_t d, bool k, Tn o), { put(o, at::argmax(T(a), d, k)); })
ACLNN(MaxDim, (Tn a, int64_t d, bool k, Tn o, Tn i), { auto r = at::max(T(a), d, k); put(o, std::get<0>(r)); put(i, std::get<1>(r)); })
ACLNN(Sort, (Tn a, bool s, int64_t d, bool de, Tn v, Tn i), { auto r = at::sort(T(a), s, d, de); put(v, std::get<0>(r)); put(i, std::get<1>(r)); })
// ---- activations, losses, normalisation ----
ACLNN(ThresholdBackward, (Tn g, Tn a, Sc t, Tn o), { put(o, at::threshold_backward(T(g), T(a), S(t))); })
ACLNN(SigmoidBackward, (Tn g, Tn a, Tn o), { put(o, at::sigmoid_backward(T(g), T(a))); })
ACLNN(TanhBackward, (Tn g, Tn a, Tn o), { put(o, at::tanh_backward(T(g), T(a))); })
ACLNN(GeluBackward, (Tn g, Tn a, Tn o), { put(o, at::gelu_backward(T(g), T(a))); })
ACLNN(SiluBackward, (Tn g, Tn a, Tn o), { put(o, at::silu_backward(T(g), T(a))); })
ACLNN(Softmax, (Tn a, int64_t d, Tn o), { put(o, at::_softmax(T(a), d, false)); })
ACLNN(LogSoftmax, (Tn a, int64_t d, Tn o), { put(o, at::_log_softmax(T(a), d, false)); })
ACLNN(SoftmaxBackward, (Tn g, Tn y, int64_t d, Tn o), { put(o, at::_softmax_backward_data(T(g), T(y), d, T(y).scalar_type())); })
ACLNN(LogSoftmaxBackward, (Tn g, Tn y, int64_t d, Tn o), { put(o, at::_log_softmax_backward_data(T(g), T(y), d, T(y).scalar_type())); })
ACLNN(NLLLoss, (Tn a, Tn t, Tn w, int64_t r, int64_t ig, Tn o, Tn tw), { auto x = at::nll_loss_forward(T(a), T(t).to(at::kLong), OT(w), r, ig); put(o, std::get<0>(x)); put(tw, std::get<1>(x)); })
ACLNN(NLLLossBackward, (Tn g, Tn a, Tn t, Tn w, int64_t r, int64_t ig, Tn tw, Tn o), { put(o, at::nll_loss_backward(T(g), T(a), T(t).to(at::kLong), OT(w), r, ig, T(tw))); })
ACLNN(MseLoss, (Tn a, Tn t, int64_t r, Tn o), { put(o, at::mse_loss(T(a), T(t), r)); })
ACLNN(MseLossBackward, (Tn g, Tn a, Tn t, int64_t r, Tn o), { put(o, at::mse_loss_backward(T(g), T(a), T(t), r)); })
ACLNN(LayerNorm, (Tn a, Ia n, Tn w, Tn b, double eps, Tn o, Tn m, Tn r), { auto x = at::native_layer_norm(T(a), I(n), OT(w), OT(b), eps); put(o, std::get<0>(x)); put(m, std::get<1>(x)); put(r, std::get<2>(x)); })
ACLNN(LayerNormBackward, (Tn g, Tn a, Ia n, Tn m, Tn r, Tn w, Tn b, Ba mask, Tn gi, Tn gw, Tn gb), {
    std::array<bool, 3> k{gi && mask->v[0], gw && mask->v[1], gb && mask->v[2]};
    auto x = at::native_layer_norm_backward(T(g), T(a), I(n), T(m), T(r), OT(w), OT(b), k);
    if (k[0]) put(gi, std::get<0>(x)); if (k[1]) put(gw, std::get<1>(x)); if (k[2]) put(gb, std::get<2>(x)); })
ACLNN(Embedding, (Tn w, Tn i, Tn o), { put(o, at::embedding(T(w), T(i))); })
ACLNN(EmbeddingDenseBackward, (Tn g, Tn i, uint64_t n, uint64_t p, bool s, Tn o), { put(o, at::embedding_dense_backward(T(g), T(i).to(at::kLong), (int64_t)n, (int64_t)p, s)); })
ACLNN_WS(Convolution, 32 * MB, (Tn a, Tn w, Tn b, Ia s, Ia p, Ia d, bool tr, Ia op, int64_t g, Tn o, int8_t), { put(o, at::convolution(T(a), T(w), OT(b), I(s), I(p), I(d), tr, I(op), g)); })
ACLNN_WS(ConvolutionBackward, 32 * MB, (Tn g, Tn a, Tn w, Ia bs, Ia s, Ia p, Ia d, bool tr, Ia op, int64_t gr, Ba mask, int8_t, Tn gi, Tn gw, Tn gb), {
    std::array<bool, 3> k{(bool)mask->v[0], (bool)mask->v[1], (bool)mask->v[2]};
    auto x = at::convolution_backward(T(g), T(a), T(w), bs ? c10::OptionalIntArrayRef(I(bs)) : c10::OptionalIntArrayRef(), I(s), I(p), I(d), tr, I(op), gr, k);
    if (k[0]) put(gi, std::get<0>(x)); if (k[1]) put(gw, std::get<1>(x)); if (k[2]) put(gb, std::get<2>(x)); })
// ---- creation, random, shape ----
ACLNN(InplaceNormal, (Tn a, float m, float s, int64_t seed, int64_t off), { T(a).normal_(m, s, gen(seed, off)); })
ACLNN(InplaceUniform, (Tn a, double f, double t, uint64_t seed, uint64_t off), { T(a).uniform_(f, t, gen((int64_t)seed, (int64_t)off)); })
ACLNN(InplaceRandom, (Tn a, int64_t f, int64_t t, int64_t seed, int64_t off), { T(a).random_(f, t, gen(seed, off)); })
ACLNN(Arange, (Sc b, Sc e, Sc s, Tn o), { auto t = T(o); t.copy_(at::arange(S(b), S(e), S(s), t.options()).slice(0, 0, t.numel())); })
ACLNN(Randperm, (int64_t n, int64_t seed, int64_t off, Tn o), { put(o, at::randperm(n, gen(seed, off))); })
ACLNN(Cat, (Tl l, int64_t d, Tn o), { put(o, at::cat(TL(l), d)); })
ACLNN(Stack, (Tl l, int64_t d, Tn o), { put(o, at::stack(TL(l), d)); })
ACLNN(Gather, (Tn a, int64_t d, Tn i, Tn o), { put(o, at::gather(T(a), d, T(i))); })
ACLNN(IndexSelect, (Tn a, int64_t d, Tn i, Tn o), { put(o, at::index_select(T(a), d, T(i))); })
ACLNN(DropoutGenMaskV2, (Ia, double, int64_t, int64_t, int, Tn m), { T(m).fill_(255); })
ACLNN(DropoutGenMask, (Ia, double, int64_t, int64_t, Tn m), { T(m).fill_(255); })
ACLNN(DropoutDoMask, (Tn a, Tn, double p, Tn o), { put(o, p < 1 ? at::div(T(a), 1 - p) : at::zeros_like(T(a))); })
// ---- foreach (optimizers) ----
ACLNN(ForeachAddListV2, (Tl a, Tl b, Sc al, Tl o), { auto x = TL(a), y = TL(b), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::add(x[i], y[i], S(al))); })
ACLNN(ForeachAddScalarV2, (Tl a, Sc s, Tl o), { auto x = TL(a), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::add(x[i], S(s))); })
ACLNN(ForeachMulScalarV2, (Tl a, Sc s, Tl o), { auto x = TL(a), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::mul(x[i], S(s))); })
ACLNN(ForeachSqrt, (Tl a, Tl o), { auto x = TL(a), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::sqrt(x[i])); })
ACLNN(ForeachLerpScalar, (Tl a, Tl b, Sc w, Tl o), { auto x = TL(a), y = TL(b), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::lerp(x[i], y[i], S(w))); })
ACLNN(ForeachAddcmulScalarV2, (Tl a, Tl b, Tl c, Sc s, Tl o), { auto x = TL(a), y = TL(b), w = TL(c), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::addcmul(x[i], y[i], w[i], S(s))); })
ACLNN(ForeachDivScalarList, (Tl a, Sl s, Tl o), { auto x = TL(a), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::div(x[i], S(s->v[i]))); })
ACLNN(ForeachAddcdivScalarList, (Tl a, Tl b, Tl c, Tn s, Tl o), { auto x = TL(a), y = TL(b), w = TL(c), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::addcdiv(x[i], y[i], w[i], T(s)[(int64_t)i].item())); })
ACLNN(BitwiseAndScalar, (Tn a, Sc b, Tn o), { put(o, at::bitwise_and(T(a), S(b))); })
ACLNN(BitwiseOrTensor, (Tn a, Tn b, Tn o), { put(o, at::bitwise_or(T(a), T(b))); })
ACLNN(BitwiseOrScalar, (Tn a, Sc b, Tn o), { put(o, at::bitwise_or(T(a), S(b))); })
// output size known only after the run: the caller reads it back with aclGetViewShape
ACLNN(MaskedSelect, (Tn a, Tn m, Tn o), { auto r = at::masked_select(T(a), T(m)); auto *t = const_cast<aclTensor *>(o); t->sizes = {r.numel()}; t->strides = {1}; T(t).copy_(r); })
SIM_API int aclGetViewShape(const aclTensor *t, int64_t **d, uint64_t *n) { *n = t->sizes.size(); *d = new int64_t[*n ? *n : 1]; std::copy(t->sizes.begin(), t->sizes.end(), *d); return 0; }
// ---- more, found by running models ----
ACLNN(Tril, (Tn a, int64_t d, Tn o), { put(o, at::tril(T(a), d)); })
ACLNN(Triu, (Tn a, int64_t d, Tn o), { put(o, at::triu(T(a), d)); })
ACLNN(Clamp, (Tn a, Sc lo, Sc hi, Tn o), { put(o, at::clamp(T(a), lo ? c10::optional<at::Scalar>(S(lo)) : c10::nullopt, hi ? c10::optional<at::Scalar>(S(hi)) : c10::nullopt)); })
ACLNN(ClampMin, (Tn a, Sc v, Tn o), { put(o, at::clamp_min(T(a), S(v))); })
ACLNN(ClampMax, (Tn a, Sc v, Tn o), { put(o, at::clamp_max(T(a), S(v))); })
ACLNN(ClampMinTensor, (Tn a, Tn v, Tn o), { put(o, at::clamp_min(T(a), T(v))); })
ACLNN(LinalgVectorNorm, (Tn a, Sc ord, Ia d, bool k, int, Tn o), { put(o, at::linalg_vector_norm(T(a), S(ord), d && !d->v.empty() ? at::OptionalIntArrayRef(I(d)) : at::OptionalIntArrayRef(), k)); })
ACLNN(Norm, (Tn a, Sc p, Ia d, bool k, Tn o), { put(o, at::norm(T(a), S(p), I(d), k)); })
ACLNN(ForeachNorm, (Tl a, Sc p, Tl o), { auto x = TL(a), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::linalg_vector_norm(x[i], S(p)).reshape(z[i].sizes())); })
ACLNN(ForeachMulList, (Tl a, Tl b, Tl o), { auto x = TL(a), y = TL(b), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::mul(x[i], y[i])); })
ACLNN(ForeachMulScalar, (Tl a, Tn s, Tl o), { auto x = TL(a), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::mul(x[i], T(s).item())); })
ACLNN(Topk, (Tn a, int64_t k, int64_t d, bool l, bool s, Tn v, Tn i), { auto r = at::topk(T(a), k, d, l, s); put(v, std::get<0>(r)); put(i, std::get<1>(r)); })
ACLNN(Cumsum, (Tn a, int64_t d, int, Tn o), { auto t = T(o); t.copy_(at::cumsum(T(a), d, t.scalar_type())); })
ACLNN(Flip, (Tn a, Ia d, Tn o), { put(o, at::flip(T(a), I(d))); })
ACLNN(Repeat, (Tn a, Ia d, Tn o), { put(o, T(a).repeat(I(d))); })
ACLNN(ScatterAdd, (Tn a, int64_t d, Tn i, Tn s, Tn o), { put(o, at::scatter_add(T(a), d, T(i), T(s))); })
ACLNN(Index, (Tn a, Tl ix, Tn o), { c10::List<c10::optional<at::Tensor>> l; for (auto *t : ix->v) { auto x = T(t); l.push_back(t && (x.dim() || x.numel()) && !(x.numel() == 0 && x.dim() == 1) ? c10::optional<at::Tensor>(x.scalar_type() == at::kInt ? x.to(at::kLong) : x) : c10::nullopt); } put(o, at::index(T(a), l)); })
ACLNN(InplaceBernoulli, (Tn a, Sc p, int64_t seed, int64_t off), { T(a).bernoulli_(S(p).toDouble(), gen(seed, off)); })
ACLNN(BatchNorm, (Tn a, Tn w, Tn b, Tn rm, Tn rv, bool tr, double mo, double eps, Tn o, Tn m, Tn is), { auto x = at::native_batch_norm(T(a), OT(w), OT(b), OT(rm), OT(rv), tr, mo, eps); put(o, std::get<0>(x)); if (tr) { put(m, std::get<1>(x)); put(is, std::get<2>(x)); } })
ACLNN(BatchNormBackward, (Tn g, Tn a, Tn w, Tn rm, Tn rv, Tn m, Tn is, bool tr, double eps, Ba mask, Tn gi, Tn gw, Tn gb), {
    std::array<bool, 3> k{(bool)mask->v[0], (bool)mask->v[1], (bool)mask->v[2]};
    auto x = at::native_batch_norm_backward(T(g), T(a), OT(w), OT(rm), OT(rv), OT(m), OT(is), tr, eps, k);
    if (k[0]) put(gi, std::get<0>(x)); if (k[1]) put(gw, std::get<1>(x)); if (k[2]) put(gb, std::get<2>(x)); })
ACLNN(AvgPool2d, (Tn a, Ia k, Ia s, Ia p, bool c, bool ci, int64_t dv, int8_t, Tn o), { put(o, at::avg_pool2d(T(a), I(k), I(s), I(p), c, ci, dv ? c10::optional<int64_t>(dv) : c10::nullopt)); })
SIM_API int aclnnFastLayerNormGetWorkspaceSize(Tn a, Ia n, Tn w, Tn b, double e, Tn o, Tn m, Tn r, uint64_t *ws, aclOpExecutor **x) { return aclnnLayerNormGetWorkspaceSize(a, n, w, b, e, o, m, r, ws, x); }
SIM_API int aclnnFastLayerNorm(void *w, uint64_t n, aclOpExecutor *e, void *s) { return aclnnLayerNorm(w, n, e, s); }
ACLNN(ForeachAddcdivScalarV2, (Tl a, Tl b, Tl c, Sc s, Tl o), { auto x = TL(a), y = TL(b), w = TL(c), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::addcdiv(x[i], y[i], w[i], S(s))); })
ACLNN(ForeachAddScalarList, (Tl a, Sl s, Tl o), { auto x = TL(a), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::add(x[i], S(s->v[i]))); })
ACLNN(ForeachMulScalarList, (Tl a, Sl s, Tl o), { auto x = TL(a), z = TL(o); for (size_t i = 0; i < x.size(); i++) z[i].copy_(at::mul(x[i], S(s->v[i]))); })
ACLNN(MaxPool2dWithMask, (Tn a, Ia k, Ia s, Ia p, Ia d, bool c, Tn o, Tn), { put(o, at::max_pool2d(T(a), I(k), I(s), I(p), I(d), c)); })
ACLNN(MaxPool2dWithMaskBackward, (Tn g, Tn a, Tn, Ia k, Ia s, Ia p, Ia d, bool c, Tn o), { auto x = at::max_pool2d_with_indices(T(a), I(k), I(s), I(p), I(d), c); put(o, at::max_pool2d_with_indices_backward(T(g), T(a), I(k), I(s), I(p), I(d), c, std::get<1>(x))); })
ACLNN(MaxPool2dWithIndices, (Tn a, Ia k, Ia s, Ia p, Ia d, bool c, Tn o, Tn ix), { auto x = at::max_pool2d_with_indices(T(a), I(k), I(s), I(p), I(d), c); put(o, std::get<0>(x)); put(ix, std::get<1>(x)); })
ACLNN(MaxPool2dWithIndicesBackward, (Tn g, Tn a, Tn ix, Ia k, Ia s, Ia p, Ia d, bool c, Tn o), { put(o, at::max_pool2d_with_indices_backward(T(g), T(a), I(k), I(s), I(p), I(d), c, T(ix).to(at::kLong))); })
ACLNN(ConstantPadNd, (Tn a, Ia p, Sc v, Tn o), { put(o, at::constant_pad_nd(T(a), I(p), S(v))); })
