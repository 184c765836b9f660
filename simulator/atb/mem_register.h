// How ATB tells a tool, through mstx, of the memory it hands out of a workspace: domain "atb", the workspace a heap,
// and while a kernel runs a region for each part that it uses. Unlike the pools of the frameworks it passes an array
// for the regions' handles and unregisters by them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" {
int aclrtGetDevice(int32_t* device);
void* mstxDomainCreateA(const char* name);
void* mstxMemHeapRegister(void* domain, const void* desc);
void mstxMemHeapUnregister(void* domain, void* heap);
void mstxMemRegionsRegister(void* domain, const void* batch);
void mstxMemRegionsUnregister(void* domain, const void* batch);
}

namespace atb {

struct MstxRange {
    uint32_t deviceId;
    const void* ptr;
    uint64_t size;
};
struct MstxHeapDesc {
    int32_t usage, type;
    const void* typeSpecificDesc;
};
struct MstxRegisterBatch {
    void* heap;
    int32_t regionType;
    size_t regionCount;
    const void* regionDescArray;
    void** regionHandleArrayOut;
};
struct MstxRegionRef {
    int32_t refType;
    void* handle;
};
struct MstxUnregisterBatch {
    size_t refCount;
    const MstxRegionRef* refArray;
};

class MstxMemRegister {
public:
    ~MstxMemRegister() {
        if (heap_) mstxMemHeapUnregister(Domain(), heap_);
    }
    // False when no tool gives a handle: then this thread never asks again.
    bool RegisterHeap(void* workspace, uint64_t size) {
        if (!Enabled()) return false;
        const MstxRange range = {Device(), workspace, size};
        const MstxHeapDesc desc = {0, 0, &range};
        heap_ = mstxMemHeapRegister(Domain(), &desc);
        Enabled() = heap_ != nullptr;
        return Enabled();
    }
    void Register(void* workspace, uint64_t workspaceSize, void* intermediate, uint64_t intermediateSize) {
        ranges_.clear();
        if (workspaceSize) ranges_.push_back({Device(), workspace, workspaceSize});
        if (intermediateSize) ranges_.push_back({Device(), intermediate, intermediateSize});
        handles_.assign(ranges_.size(), nullptr);
        const MstxRegisterBatch batch = {heap_, 0, ranges_.size(), ranges_.data(), handles_.data()};
        if (!ranges_.empty()) mstxMemRegionsRegister(Domain(), &batch);
    }
    void Unregister() {
        std::vector<MstxRegionRef> refs;
        for (void* handle : handles_) refs.push_back({1, handle});
        const MstxUnregisterBatch batch = {refs.size(), refs.data()};
        if (!refs.empty()) mstxMemRegionsUnregister(Domain(), &batch);
    }

private:
    static void* Domain() {
        static void* domain = mstxDomainCreateA("atb");
        return domain;
    }
    static bool& Enabled() {
        static thread_local bool enabled = true;
        return enabled;
    }
    static uint32_t Device() {
        int32_t device = -1;
        return aclrtGetDevice(&device) == 0 ? (uint32_t)device : ~0u;
    }
    void* heap_ = nullptr;
    std::vector<MstxRange> ranges_;
    std::vector<void*> handles_;
};

}  // namespace atb
