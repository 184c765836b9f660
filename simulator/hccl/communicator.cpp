#include "hccl/communicator.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "abi/driver.h"
#include "abi/runtime.h"
#include "calls.h"
#include "hccl/waiting.h"
#include "knobs.h"
#include "npusim.h"

namespace {

constexpr int64_t kBufferMiB = 200;  // each of the two; HCCL_BUFFSIZE says otherwise

// As the real library: one buffer for sending and one for receiving, per communicator.
bool take_buffers(Communicator& communicator) {
    if (npusim_knob(Knob::CANN_MEMORY) == 0) return true;
    const char* const text = getenv("HCCL_BUFFSIZE");
    const int64_t wanted = text != nullptr ? strtoll(text, nullptr, 10) : 0;
    const uint64_t bytes = static_cast<uint64_t>(wanted > 0 ? wanted : kBufferMiB) << 20;
    for (void*& buffer : communicator.buffers)
        if (rtMalloc(&buffer, bytes, 0, MODULE_HCCL) != RT_OK) return false;
    return true;
}

void destroy(Communicator* communicator) {
    for (void* buffer : communicator->buffers)
        if (buffer != nullptr) rtFree(buffer);
    if (communicator->shared != nullptr) munmap(communicator->shared, sizeof(Shared));
    delete communicator;
}

Shared* map_shared(const char* name) {
    const int file = shm_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return nullptr;
    void* place = MAP_FAILED;
    if (ftruncate(file, sizeof(Shared)) == 0)
        place = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return place == MAP_FAILED ? nullptr : static_cast<Shared*>(place);
}

}  // namespace

bool Communicator::meet() {
    sense ^= 1;
    if (shared->arrived.fetch_add(1) + 1 == ranks) {
        shared->arrived = 0;
        shared->sense = sense;
        return true;
    }
    return wait_until([this] { return shared->sense.load() == sense; });
}

Communicator* communicator_of(void* handle) { return static_cast<Communicator*>(handle); }

HcclResult HcclGetRootInfo(HcclRootInfo* root) {
    SIM_CALL(HCCL_PARAMETER);
    static std::atomic<int> count{0};
    memset(root, 0, sizeof *root);
    snprintf(root->name, sizeof root->name, "/npusim-hccl-%d-%d", static_cast<int>(getpid()), count++);
    return HCCL_OK;
}

HcclResult HcclCommInitRootInfo(uint32_t ranks, const HcclRootInfo* root, uint32_t rank, void** handle) {
    SIM_CALL(HCCL_PARAMETER);
    if (ranks == 0 || ranks > kMostRanks || rank >= ranks) return HCCL_PARAMETER;
    auto* const communicator = new Communicator{ranks, rank, {}, map_shared(root->name)};
    snprintf(communicator->name, sizeof communicator->name, "%.63s", root->name);
    Shared* const shared = communicator->shared;
    if (shared == nullptr || !take_buffers(*communicator)) {
        destroy(communicator);
        return HCCL_MEMORY;
    }
    shared->joined++;
    if (!wait_until([&] { return shared->joined.load() >= ranks; })) {
        destroy(communicator);
        return HCCL_TIMEOUT;
    }
    if (rank == 0) shm_unlink(root->name);  // every rank has it mapped
    npusim_trace("hccl: rank %u of %u joined %s", rank, ranks, root->name);
    *handle = communicator;
    return HCCL_OK;
}

HcclResult HcclCommInitRootInfoConfig(uint32_t ranks, const HcclRootInfo* root, uint32_t rank, void*, void** handle) {
    return HcclCommInitRootInfo(ranks, root, rank, handle);
}

HcclResult HcclCommDestroy(void* handle) {
    SIM_CALL(HCCL_PARAMETER);
    if (handle == nullptr) return HCCL_PARAMETER;
    destroy(communicator_of(handle));
    return HCCL_OK;
}

SIM_API HcclResult HcclGetCommName(void* handle, char* name) {
    strcpy(name, communicator_of(handle)->name + 1);  // without the slash of its shared memory
    return HCCL_OK;
}

SIM_API HcclResult HcclGetCommAsyncError(void*, HcclResult* error) {
    *error = HCCL_OK;
    return HCCL_OK;
}

SIM_API uint32_t HcclGetCommConfigCapability() { return 3; }
SIM_API HcclResult HcclSetConfig(int, int) { return HCCL_OK; }
