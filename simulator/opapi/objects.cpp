// aclCreate* and aclDestroy*: the descriptions that operators are given (see objects.h).
#include "objects.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cann.h"

namespace {

thread_local std::vector<simulated::Object*> new_objects;

// An object nobody uses before the next operator (torch_npu asks for a few) is held until then, no longer.
template <class T>
T* made(T* object) {
    object->hold();
    new_objects.push_back(object);
    return object;
}

template <class T>
int destroy(const T* object) {
    if (object != nullptr) {
        const_cast<T*>(object)->release();
    }
    return 0;
}

size_t bytes_of(int dtype) {
    switch (dtype) {
        case 1:   // float16
        case 6:   // int16
        case 7:   // uint16
        case 27:  // bfloat16
            return 2;
        case 0:  // float
        case 3:  // int32
        case 8:  // uint32
            return 4;
        case 9:   // int64
        case 10:  // uint64
        case 11:  // double
        case 16:  // complex64
            return 8;
        case 17:  // complex128
            return 16;
        default:
            return 1;
    }
}

template <class Array, class T>
Array* make_array(const T* values, uint64_t n) {
    auto* array = new Array;
    array->values.assign(values, values + n);
    return made(array);
}

template <class List, class T>
List* make_list(const T* const* members, uint64_t n) {
    auto* list = new List;
    list->members.assign(members, members + n);
    return made(list);
}

}  // namespace

std::vector<simulated::Object*> simulated::take_new_objects() { return std::exchange(new_objects, {}); }

aclTensorList::~aclTensorList() { std::for_each(members.begin(), members.end(), destroy<aclTensor>); }

aclScalarList::~aclScalarList() { std::for_each(members.begin(), members.end(), destroy<aclScalar>); }

SIM_API aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t dims, int dtype, const int64_t* strides,
                                   int64_t offset, int /*format*/, const int64_t* /*storage_sizes*/,
                                   uint64_t /*storage_dims*/, void* data) {
    auto* tensor = new aclTensor;
    tensor->sizes.assign(sizes, sizes + dims);
    if (strides != nullptr) {
        tensor->strides.assign(strides, strides + dims);
    }
    tensor->dtype = dtype;
    tensor->offset = offset;
    tensor->data = static_cast<char*>(data);
    return made(tensor);
}

SIM_API aclScalar* aclCreateScalar(void* value, int dtype) {
    auto* scalar = new aclScalar;
    scalar->dtype = dtype;
    memcpy(scalar->value, value, bytes_of(dtype));
    return made(scalar);
}

SIM_API aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t n) { return make_array<aclIntArray>(values, n); }

SIM_API aclFloatArray* aclCreateFloatArray(const float* values, uint64_t n) {
    return make_array<aclFloatArray>(values, n);
}

SIM_API aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t n) { return make_array<aclBoolArray>(values, n); }

SIM_API aclTensorList* aclCreateTensorList(const aclTensor* const* members, uint64_t n) {
    return make_list<aclTensorList>(members, n);
}

SIM_API aclScalarList* aclCreateScalarList(const aclScalar* const* members, uint64_t n) {
    return make_list<aclScalarList>(members, n);
}

SIM_API int aclDestroyTensor(const aclTensor* tensor) { return destroy(tensor); }
SIM_API int aclDestroyScalar(const aclScalar* scalar) { return destroy(scalar); }
SIM_API int aclDestroyIntArray(const aclIntArray* array) { return destroy(array); }
SIM_API int aclDestroyFloatArray(const aclFloatArray* array) { return destroy(array); }
SIM_API int aclDestroyBoolArray(const aclBoolArray* array) { return destroy(array); }
SIM_API int aclDestroyTensorList(const aclTensorList* list) { return destroy(list); }
SIM_API int aclDestroyScalarList(const aclScalarList* list) { return destroy(list); }

// Where an operator decides the size of its output (masked_select), torch_npu reads it back. It frees the array.
SIM_API int aclGetViewShape(const aclTensor* tensor, int64_t** sizes, uint64_t* dims) {
    *dims = tensor->sizes.size();
    *sizes = new int64_t[*dims + 1];
    std::copy(tensor->sizes.begin(), tensor->sizes.end(), *sizes);
    return 0;
}
