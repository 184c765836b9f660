// The classes that the simulated libatb.so shares with whoever looks into it: members in the order of the public
// headers of ATB and of its kernel library Mki, with the methods that are used here.
//
// A test builds libraries of another version with one of
//   SIM_ATB_OLD_MKI        Mki of before 2024: a tensor without strides
//   SIM_ATB_LARGER_TENSOR  a future atb::Tensor
//   SIM_ATB_LARGER_LAUNCH  a future Mki::Tensor
//   SIM_ATB_MISSING        Runner::GetSaveTensorDir is not exported
//   SIM_ATB_VIRTUAL        Runner::Execute is virtual
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef SIM_ATB_MISSING
#define SIM_ATB_MAYBE_HIDDEN __attribute__((visibility("hidden")))
#else
#define SIM_ATB_MAYBE_HIDDEN
#endif
#ifdef SIM_ATB_VIRTUAL
#define SIM_ATB_MAYBE_VIRTUAL virtual
#else
#define SIM_ATB_MAYBE_VIRTUAL
#endif

namespace Mki {

template <class T, size_t N = 48>
class SVector {
public:
    void push_back(const T& value) {
        if (size_ == N) throw std::length_error("Mki::SVector");
        storage_[size_++] = value;
    }
    size_t size() const { return size_; }
    T& at(size_t i) { return storage_[i]; }
    const T& at(size_t i) const { return storage_[i]; }

private:
    T storage_[N + 1] = {};
    size_t size_ = 0;
};

struct TensorDesc {
    int dtype = -1;
    int format = -1;
    SVector<int64_t> dims;
#ifndef SIM_ATB_OLD_MKI
    std::vector<int64_t> strides;
    int64_t offset = 0;
#endif
};

struct Tensor {
    TensorDesc desc;
#ifdef SIM_ATB_LARGER_LAUNCH
    uint64_t added = 0;
#endif
    void* data = nullptr;
    size_t dataSize = 0;
    void* hostData = nullptr;
};

class LaunchParam {
public:
    SVector<Tensor>& GetInTensors();
    SVector<Tensor>& GetOutTensors();

private:
    void* specificParam_ = nullptr;
    SVector<Tensor> inTensors_;
    SVector<Tensor> outTensors_;
};

}  // namespace Mki

namespace atb {

using Status = int32_t;
enum : Status { NO_ERROR = 0, ERROR_INVALID_PARAM = 1, ERROR_INTERNAL_ERROR = 3 };
enum { ACL_INT32 = 3, ACL_FORMAT_ND = 2 };

template <class T>
class SVector {
public:
    ~SVector() { delete[] heap_; }
    SVector() = default;
    SVector(const SVector&) = delete;
    SVector& operator=(const SVector&) = delete;
    // Beyond 64 items they move to the heap, all at once and for good.
    void push_back(const T& value) {
        if (size_ == 256) throw std::length_error("atb::SVector");
        if (!heap_ && size_ == 64) {
            capacity_ = 256;
            heap_ = new T[256]();
            for (size_t i = 0; i < 64; i++) heap_[i] = storage_[i];
        }
        at(size_++) = value;
    }
    size_t size() const { return size_; }
    T& at(size_t i) { return heap_ ? heap_[i] : storage_[i]; }

private:
    size_t capacity_ = 0;
    size_t size_ = 0;
    T storage_[65] = {};
    T* heap_ = nullptr;
};

struct Dims {
    int64_t dims[8];
    uint64_t dimNum = 0;
};
struct TensorDesc {
    int32_t dtype = -1;
    int32_t format = -1;
    Dims shape = {};
};
struct Tensor {
    TensorDesc desc;
#ifdef SIM_ATB_LARGER_TENSOR
    uint64_t added = 0;
#endif
    void* deviceData = nullptr;
    void* hostData = nullptr;
    uint64_t dataSize = 0;
};

class MstxMemRegister;

struct RunnerVariantPack {
    SVector<Tensor> inTensors;
    SVector<Tensor> outTensors;
    SVector<bool> isInTensorCanFree;
    SVector<bool> isOutTensorNeedMalloc;
    uint8_t* hostTilingBuffer = nullptr;
    uint8_t* tilingBuffer = nullptr;
    uint64_t tilingBufferSize = 0;
    uint8_t* workspaceBuffer = nullptr;
    uint64_t workspaceBufferSize = 0;
    uint8_t* intermediateBuffer = nullptr;
    uint64_t intermediateBufferSize = 0;
    uint8_t* argsDeviceBuffer = nullptr;
    uint8_t* argsHostBuffer = nullptr;
    void* context = nullptr;  // here the stream
    MstxMemRegister* mstxMemRegister = nullptr;
};

class Probe {
public:
    static bool IsTensorNeedSave(const std::vector<int64_t>& ids, const std::string& opType);
    static bool IsSaveTensorData();
    static bool IsSaveTensorDesc();
    static bool IsExecuteCountInRange(const uint64_t executeCount);
    static bool IsSaveTensorBefore();
    static bool IsSaveTensorAfter();
};

class StoreUtil {
public:
    static void SaveVariantPack(void* stream, RunnerVariantPack& pack, const std::string& dirPath);
    static void SaveLaunchParam(void* stream, const Mki::LaunchParam& launchParam, const std::string& dirPath);
};

class Runner {
public:
    explicit Runner(const std::string& name);
    virtual ~Runner();
    std::string GetOperationName() const;
    SIM_ATB_MAYBE_VIRTUAL Status Execute(RunnerVariantPack& runnerVariantPack);
    void SetRunnerInfo(const std::string& operationName, const std::vector<int64_t>& operationIds);
    virtual void SetSaveTensorDir(const std::string& tensorDir);
    SIM_ATB_MAYBE_HIDDEN std::string GetSaveTensorDir() const;

protected:
    bool IsSaveTensor() const;
    std::vector<int64_t> runnerIds_;
    size_t executeCount_ = 0;
    std::string tensorDir_;

private:
    virtual Status ExecuteImpl(RunnerVariantPack& runnerVariantPack) = 0;
    std::string name_;
    std::string operationName_;
    bool saveTensorFlag_ = false;
};

}  // namespace atb
