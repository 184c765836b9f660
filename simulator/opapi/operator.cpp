// What all operators share: from descriptions to tensors, and from a prepared operator to a kernel on a stream.
#include "operator.h"
#include "knobs.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

extern "C" int aclrtLaunchKernelWithHostArgs(void*, uint32_t, void*, void*, void*, size_t, void*, size_t);

struct aclOpExecutor {
    const char* name;
    std::function<void()> compute;
    std::vector<simulated::Object*> objects;
    // Set when the kernel ran before its launch returned, that is on a synchronous stream.
    std::shared_ptr<std::string> failure;
    ~aclOpExecutor() {
        for (simulated::Object* object : objects) {
            object->release();
        }
    }
};

namespace simulated {

namespace {

constexpr int ACLNN_ERR_INNER = 561000;

uint64_t workspace_bytes_or(uint64_t ours) {
    static const char* asked = npusim_knob_text(Knob::WORKSPACE);
    return *asked != '\0' ? strtoull(asked, nullptr, 0) : ours;
}

bool streams_are_asynchronous() { return npusim_knob(Knob::ASYNC) != 0; }

void run(void* context) {
    std::unique_ptr<aclOpExecutor> executor(static_cast<aclOpExecutor*>(context));
    at::NoGradGuard no_gradients;
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    try {
        executor->compute();
    } catch (const std::exception& error) {
        fprintf(stderr, "[npusim] operator %s failed: %s\n", executor->name, error.what());
        if (streams_are_asynchronous()) {
            abort();  // nobody waits for this operator's status: better loud than wrong
        }
        *executor->failure = error.what();
        npusim_set_error_message(error.what());
    }
}

template <class T>
const T& as(const char* value) {
    return *reinterpret_cast<const T*>(value);
}

}  // namespace

at::ScalarType scalar_type(int dtype) {
    switch (dtype) {
        case 0:
            return at::kFloat;
        case 1:
            return at::kHalf;
        case 2:
            return at::kChar;
        case 3:
            return at::kInt;
        case 4:
            return at::kByte;
        case 6:
            return at::kShort;
        case 7:
            return at::kUInt16;
        case 8:
            return at::kUInt32;
        case 9:
            return at::kLong;
        case 10:
            return at::kUInt64;
        case 11:
            return at::kDouble;
        case 12:
            return at::kBool;
        case 16:
            return at::kComplexFloat;
        case 17:
            return at::kComplexDouble;
        case 27:
            return at::kBFloat16;
        default:
            // Usually a parameter that is no tensor: the operator's parameter list is wrong.
            throw std::runtime_error("unknown data type " + std::to_string(dtype));
    }
}

at::Tensor tensor(const aclTensor* described) {
    if (described == nullptr) {
        return {};
    }
    const at::ScalarType type = scalar_type(described->dtype);
    const auto options = at::TensorOptions().dtype(type).device(at::kCPU);
    if (described->data == nullptr) {
        return at::empty(described->sizes, options);
    }
    void* data = described->data + described->offset * static_cast<int64_t>(c10::elementSize(type));
    return described->strides.empty() ? at::from_blob(data, described->sizes, options)
                                      : at::from_blob(data, described->sizes, described->strides, options);
}

at::Scalar scalar(const aclScalar* described) {
    const char* value = described->value;
    switch (scalar_type(described->dtype)) {
        case at::kFloat:
            return as<float>(value);
        case at::kDouble:
            return as<double>(value);
        case at::kHalf:
            return static_cast<float>(as<at::Half>(value));
        case at::kBFloat16:
            return static_cast<float>(as<at::BFloat16>(value));
        case at::kChar:
            return as<int8_t>(value);
        case at::kByte:
            return as<uint8_t>(value);
        case at::kShort:
            return as<int16_t>(value);
        case at::kInt:
            return as<int32_t>(value);
        case at::kLong:
            return as<int64_t>(value);
        case at::kBool:
            return as<bool>(value);
        case at::kComplexFloat:
            return as<c10::complex<float>>(value);
        case at::kComplexDouble:
            return as<c10::complex<double>>(value);
        default:
            throw std::runtime_error("no scalar has data type " + std::to_string(described->dtype));
    }
}

std::vector<at::Tensor> Ins::operator*() const {
    std::vector<at::Tensor> tensors;
    if (described != nullptr) {
        for (const aclTensor* member : described->members) {
            tensors.push_back(tensor(member));
        }
    }
    return tensors;
}

void Outs::operator=(const std::vector<at::Tensor>& values) const {
    for (size_t i = 0; i < described->members.size(); ++i) {
        at::Tensor output = tensor(described->members[i]);
        output.copy_(values.at(i).reshape(output.sizes()));
    }
}

std::vector<at::Scalar> Numbers::operator*() const {
    std::vector<at::Scalar> numbers;
    for (const aclScalar* member : described->members) {
        numbers.push_back(scalar(member));
    }
    return numbers;
}

at::Generator generator(int64_t seed, int64_t offset) {
    return at::detail::createCPUGenerator(static_cast<uint64_t>(seed + offset));
}

int prepare(const char* name, uint64_t workspace_bytes, std::function<void()> compute, uint64_t* workspace,
            aclOpExecutor** executor) {
    npusim_found_operator();
    *workspace = workspace_bytes_or(workspace_bytes);
    *executor = new aclOpExecutor{name, std::move(compute), take_new_objects(), std::make_shared<std::string>()};
    return 0;
}

int launch(aclOpExecutor* executor, void* stream) {
    const std::shared_ptr<std::string> failure = executor->failure;
    SimKernel kernel{SIM_KERNEL_MAGIC, executor->name, run, executor};
    const int status = aclrtLaunchKernelWithHostArgs(&kernel, 1, stream, nullptr, nullptr, 0, nullptr, 0);
    return status == 0 && !streams_are_asynchronous() && !failure->empty() ? ACLNN_ERR_INNER : status;
}

}  // namespace simulated
