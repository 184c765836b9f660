// How an operator is written: one ACLNN line whose body calls PyTorch's own CPU kernel. README.md explains it.
#pragma once
#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include "cann.h"
#include "objects.h"

struct aclOpExecutor;

namespace simulated {

at::ScalarType scalar_type(int dtype);
at::Tensor tensor(const aclTensor* described);
at::Scalar scalar(const aclScalar* described);

// What stands in an operator's parameter list. Each is one pointer wide and is passed as the pointer that torch_npu
// passes; all of them may be null there where the type's name does not say Maybe, but then the operator fails.

struct In {
    const aclTensor* described;
    at::Tensor operator*() const { return tensor(described); }
    operator at::Tensor() const { return tensor(described); }  // NOLINT: conversion is the point
};

struct MaybeIn {
    const aclTensor* described;
    operator std::optional<at::Tensor>() const {
        return described != nullptr ? std::optional<at::Tensor>(tensor(described)) : std::nullopt;
    }
};

// Assigning converts to the output's data type and broadcasts, as at::Tensor::copy_. A null output is not wanted.
struct Out {
    const aclTensor* described;
    void operator=(const at::Tensor& value) const {
        if (described != nullptr) {
            tensor(described).copy_(value);
        }
    }
    at::Tensor operator*() const { return tensor(described); }
    bool wanted() const { return described != nullptr; }
};

using InOut = In;

struct Number {
    const aclScalar* described;
    operator at::Scalar() const { return scalar(described); }
    at::Scalar operator*() const { return scalar(described); }
};

struct MaybeNumber {
    const aclScalar* described;
    operator std::optional<at::Scalar>() const {
        return described != nullptr ? std::optional<at::Scalar>(scalar(described)) : std::nullopt;
    }
};

struct Ints {
    const aclIntArray* described;
    at::IntArrayRef operator*() const {
        return described != nullptr ? at::IntArrayRef(described->values) : at::IntArrayRef();
    }
    operator at::IntArrayRef() const { return **this; }
    // Empty stands for "all dimensions" where a reduction takes it.
    at::OptionalIntArrayRef or_none() const {
        return described != nullptr && !described->values.empty() ? at::OptionalIntArrayRef(**this) : std::nullopt;
    }
};

struct Bools {
    const aclBoolArray* described;
    bool operator[](size_t i) const { return described->values[i] != 0; }
    template <size_t N>
    std::array<bool, N> first() const {
        std::array<bool, N> bits;
        std::copy_n(described->values.begin(), N, bits.begin());
        return bits;
    }
};

struct Ins {
    const aclTensorList* described;
    std::vector<at::Tensor> operator*() const;
};

struct Outs {
    const aclTensorList* described;
    void operator=(const std::vector<at::Tensor>& values) const;
};

using InOuts = Ins;

struct Numbers {
    const aclScalarList* described;
    std::vector<at::Scalar> operator*() const;
};

// Assigns the parts of a tuple: outputs(mean, rstd) = at::...
template <class... O>
struct Outputs {
    std::tuple<O...> parts;
    template <class... T>
    void operator=(const std::tuple<T...>& values) const {
        assign(values, std::index_sequence_for<O...>());
    }
    template <class T, size_t... I>
    void assign(const T& values, std::index_sequence<I...>) const {
        ((std::get<I>(parts) = std::get<I>(values)), ...);
    }
};
template <class... O>
Outputs<O...> outputs(O... parts) {
    return {{parts...}};
}

// torch_npu gives a random operator its seed and how far the sequence has got; equal values, equal numbers.
at::Generator generator(int64_t seed, int64_t offset);

constexpr uint64_t MIB = 1 << 20;

// The two steps of every aclnn operator. `name` lives for ever.
int prepare(const char* name, uint64_t workspace_bytes, std::function<void()> compute, uint64_t* workspace,
            aclOpExecutor** executor);
int launch(aclOpExecutor* executor, void* stream);

}  // namespace simulated

#define SIMULATED_UNPACK(...) __VA_ARGS__

// ACLNN(Name, (parameters), body): the C functions aclnnNameGetWorkspaceSize and aclnnName.
#define ACLNN(NAME, PARAMETERS, ...) ACLNN_WITH_WORKSPACE(NAME, 0, PARAMETERS, __VA_ARGS__)

// The same with the bytes of workspace that torch_npu has to bring. Real sizes depend on shape and version; ours are
// only there to be seen, and are the same for every shape.
#define ACLNN_WITH_WORKSPACE(NAME, BYTES, PARAMETERS, ...)                                              \
    SIM_API int aclnn##NAME##GetWorkspaceSize(SIMULATED_UNPACK PARAMETERS, uint64_t* workspace_,        \
                                              aclOpExecutor** executor_) {                              \
        return simulated::prepare("aclnn" #NAME, BYTES, [=]() { __VA_ARGS__; }, workspace_, executor_); \
    }                                                                                                   \
    SIM_API int aclnn##NAME(void*, uint64_t, aclOpExecutor* executor_, void* stream_) {                 \
        return simulated::launch(executor_, stream_);                                                   \
    }
