// What torch_npu hands to an operator: descriptions of tensors, scalars and arrays (aclTensor and so on), made by
// objects.cpp. They say where the data lies; they own none of it.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace simulated {

// torch_npu destroys what it made as soon as the operator is queued; an operator that runs later on an asynchronous
// stream still reads it. So both sides hold a count.
struct Object {
    std::atomic<int> holders{1};
    virtual ~Object() = default;
    void hold() { holders.fetch_add(1, std::memory_order_relaxed); }
    void release() {
        if (holders.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            delete this;
        }
    }
};

// The objects that this thread made since its last operator: what the next operator has to hold.
std::vector<Object*> take_new_objects();

}  // namespace simulated

// Data types are numbered as in acl_base.h of torch_npu's headers. Strides and offset count elements.
struct aclTensor : simulated::Object {
    std::vector<int64_t> sizes, strides;
    int dtype = 0;
    int64_t offset = 0;
    char* data = nullptr;
};

struct aclScalar : simulated::Object {
    int dtype = 0;
    alignas(16) char value[16] = {};
};

struct aclIntArray : simulated::Object {
    std::vector<int64_t> values;
};

struct aclFloatArray : simulated::Object {
    std::vector<float> values;
};

struct aclBoolArray : simulated::Object {
    std::vector<char> values;
};

// A list owns its members, as in the real library.
struct aclTensorList : simulated::Object {
    ~aclTensorList() override;
    std::vector<const aclTensor*> members;
};

struct aclScalarList : simulated::Object {
    ~aclScalarList() override;
    std::vector<const aclScalar*> members;
};
