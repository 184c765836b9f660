// libatb.so: a small Ascend Transformer Boost library with one operator, ELEWISE_ADD on int32, which runs one kernel.
// It is built twice, with either layout of std::string, as the real one is. Who calls whom, and by which symbols, is as
// in the public sources: an operation executes its runner, a runner runs its kernels, and around each Probe is asked
// whether StoreUtil shall save tensors. Memory of the workspace is told to mstx while kernels run.
#include "atb.h"
#include "layout.h"
#include "mem_register.h"

#include <cstring>

extern "C" {
int rtKernelLaunchWithHandleV2(void* handle, const uint64_t key, uint32_t blocks, void* args, void* sm, void* stream,
                               const void* config);
int aclrtSynchronizeStream(void* stream);
}

// What a function handle of the simulated runtime points to (cann.h, which this library does not include because its
// own names are C++).
struct SimKernel {
    uint64_t magic;
    const char* name;
    void (*run)(void* ctx);
    void* ctx;
};
static constexpr uint64_t SIM_KERNEL_MAGIC = 0x4e50555f4b45524eull;

static bool gSaving = false;
static int gSaved = 0;

namespace Mki {
SVector<Tensor>& LaunchParam::GetInTensors() { return inTensors_; }
SVector<Tensor>& LaunchParam::GetOutTensors() { return outTensors_; }
}  // namespace Mki

namespace atb {

// ---- Probe: ATB's own says no to everything ----
bool Probe::IsTensorNeedSave(const std::vector<int64_t>&, const std::string&) { return gSaving; }
bool Probe::IsSaveTensorData() { return gSaving; }
bool Probe::IsSaveTensorDesc() { return gSaving; }
bool Probe::IsExecuteCountInRange(const uint64_t) { return gSaving; }
bool Probe::IsSaveTensorBefore() { return gSaving; }
bool Probe::IsSaveTensorAfter() { return gSaving; }

// ---- StoreUtil ----
void StoreUtil::SaveVariantPack(void* stream, RunnerVariantPack& pack, const std::string&) {
    aclrtSynchronizeStream(stream);
    gSaved += (int)(pack.inTensors.size() + pack.outTensors.size());
}
void StoreUtil::SaveLaunchParam(void* stream, const Mki::LaunchParam& launchParam, const std::string&) {
    aclrtSynchronizeStream(stream);
    auto& param = const_cast<Mki::LaunchParam&>(launchParam);
    gSaved += (int)(param.GetInTensors().size() + param.GetOutTensors().size());
}

// ---- Runner ----
Runner::Runner(const std::string& name) : tensorDir_(name), name_(name) {}
Runner::~Runner() = default;
std::string Runner::GetOperationName() const { return operationName_; }
std::string Runner::GetSaveTensorDir() const { return tensorDir_; }
void Runner::SetSaveTensorDir(const std::string& tensorDir) { tensorDir_ = tensorDir; }
void Runner::SetRunnerInfo(const std::string& operationName, const std::vector<int64_t>& operationIds) {
    operationName_ = operationName;
    runnerIds_ = operationIds;
    saveTensorFlag_ = Probe::IsTensorNeedSave(runnerIds_, operationName_);
}
bool Runner::IsSaveTensor() const { return Probe::IsExecuteCountInRange(executeCount_) && saveTensorFlag_; }
Status Runner::Execute(RunnerVariantPack& pack) {
    if (IsSaveTensor() && Probe::IsSaveTensorBefore())
        StoreUtil::SaveVariantPack(pack.context, pack, tensorDir_ + "/before");
    Status status = ExecuteImpl(pack);
    if (IsSaveTensor() && Probe::IsSaveTensorAfter())
        StoreUtil::SaveVariantPack(pack.context, pack, tensorDir_ + "/after");
    executeCount_++;
    return status;
}

// ---- the one operator ----
struct AddKernel {
    SimKernel kernel;
    const int32_t *a, *b;
    int32_t* out;
    size_t count;
    static void Run(void* self) {
        auto* k = (AddKernel*)self;
        for (size_t i = 0; i < k->count; i++) k->out[i] = k->a[i] + k->b[i];
        delete k;
    }
};

class ElewiseRunner : public Runner {
public:
    ElewiseRunner() : Runner("ElewiseOpsRunner") {}
    void KeepsNodes() { nodeSaveTensorFlag_ = Probe::IsTensorNeedSave(runnerIds_, GetOperationName()); }

private:
    static Mki::Tensor ToMki(const Tensor& tensor) {
        Mki::Tensor result;
        result.desc.dtype = tensor.desc.dtype;
        result.desc.format = tensor.desc.format;
        for (uint64_t i = 0; i < tensor.desc.shape.dimNum; i++) result.desc.dims.push_back(tensor.desc.shape.dims[i]);
        result.data = tensor.deviceData;
        result.dataSize = tensor.dataSize;
        return result;
    }
    Status ExecuteImpl(RunnerVariantPack& pack) override {
        Tensor &a = pack.inTensors.at(0), &b = pack.inTensors.at(1), &out = pack.outTensors.at(0);
        if (a.dataSize != b.dataSize || a.dataSize != out.dataSize) throw std::runtime_error("shapes differ");
        Mki::LaunchParam launch;
        launch.GetInTensors().push_back(ToMki(a));
        launch.GetInTensors().push_back(ToMki(b));
        launch.GetOutTensors().push_back(ToMki(out));
        if (pack.mstxMemRegister)
            pack.mstxMemRegister->Register(pack.workspaceBuffer, pack.workspaceBufferSize, pack.intermediateBuffer,
                                           pack.intermediateBufferSize);
        const std::string path = GetSaveTensorDir() + "/0_AddI32Kernel";
        if (nodeSaveTensorFlag_ && Probe::IsExecuteCountInRange(executeCount_) && Probe::IsSaveTensorBefore())
            StoreUtil::SaveLaunchParam(pack.context, launch, path + "/before");
        auto* kernel = new AddKernel{{SIM_KERNEL_MAGIC, "AddI32Kernel", AddKernel::Run, nullptr},
                                     (int32_t*)a.deviceData,
                                     (int32_t*)b.deviceData,
                                     (int32_t*)out.deviceData,
                                     a.dataSize / 4};
        kernel->kernel.ctx = kernel;
        const int error = rtKernelLaunchWithHandleV2(&kernel->kernel, 0, 1, nullptr, nullptr, pack.context, nullptr);
        if (nodeSaveTensorFlag_ && Probe::IsExecuteCountInRange(executeCount_) && Probe::IsSaveTensorAfter())
            StoreUtil::SaveLaunchParam(pack.context, launch, path + "/after");
        if (pack.mstxMemRegister) pack.mstxMemRegister->Unregister();
        return error ? ERROR_INTERNAL_ERROR : NO_ERROR;
    }
    bool nodeSaveTensorFlag_ = false;
};

}  // namespace atb

// ---- the operation: what the program holds ----
struct npusim_atb_operation {
    atb::ElewiseRunner runner;
    std::string name;
    int executeCount = 0;
};

static atb::Tensor MakeTensor(const npusim_atb_tensor* tensor) {
    atb::Tensor result;
    result.desc.dtype = atb::ACL_INT32;
    result.desc.format = atb::ACL_FORMAT_ND;
    result.desc.shape.dims[0] = tensor->rows;
    result.desc.shape.dims[1] = tensor->columns;
    result.desc.shape.dimNum = 2;
    result.deviceData = tensor->data;
    result.dataSize = (uint64_t)(tensor->rows * tensor->columns) * sizeof(int32_t);
    return result;
}

extern "C" {
npusim_atb_operation* npusim_atb_create_add(const char* name) {
    auto* operation = new npusim_atb_operation;
    operation->name = name ? name : "ElewiseOperation";
    return operation;
}

int npusim_atb_setup(npusim_atb_operation* operation) {
    operation->runner.SetRunnerInfo(operation->name, {0});
    operation->runner.KeepsNodes();
    if (atb::Probe::IsSaveTensorDesc())
        operation->runner.SetSaveTensorDir(std::to_string(operation->executeCount) + "/0_" + operation->name);
    return atb::NO_ERROR;
}

int npusim_atb_execute(npusim_atb_operation* operation, const npusim_atb_tensor* a, const npusim_atb_tensor* b,
                       const npusim_atb_tensor* out, void* workspace, uint64_t workspace_bytes, void* stream) {
    if (!a || !b || !out) return atb::ERROR_INVALID_PARAM;
    atb::RunnerVariantPack pack;
    for (auto* tensor : {a, b}) {
        pack.inTensors.push_back(MakeTensor(tensor));
        pack.isInTensorCanFree.push_back(false);
    }
    pack.outTensors.push_back(MakeTensor(out));
    pack.isOutTensorNeedMalloc.push_back(false);
    // The second half of the workspace is for tensors between kernels.
    pack.workspaceBuffer = (uint8_t*)workspace;
    pack.workspaceBufferSize = workspace_bytes / 2;
    pack.intermediateBuffer = workspace ? (uint8_t*)workspace + workspace_bytes / 2 : nullptr;
    pack.intermediateBufferSize = workspace_bytes - workspace_bytes / 2;
    pack.context = stream;
    atb::MstxMemRegister mem;
    if (workspace_bytes != 0 && mem.RegisterHeap(workspace, workspace_bytes)) pack.mstxMemRegister = &mem;
    operation->executeCount++;
    atb::Runner* runner = &operation->runner;
    try {
        return runner->Execute(pack);
    } catch (const std::exception&) {
        return atb::ERROR_INTERNAL_ERROR;
    }
}

void npusim_atb_destroy(npusim_atb_operation* operation) { delete operation; }
void npusim_atb_set_saving(int yes) { gSaving = yes != 0; }
int npusim_atb_saved_tensors(void) { return gSaved; }
}
