// libhccl.so: collectives.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "abi/export.h"

typedef int HcclResult;
enum : int { HCCL_OK = 0, HCCL_PARAMETER = 1, HCCL_MEMORY = 3, HCCL_NOT_SUPPORT = 5, HCCL_TIMEOUT = 9 };
enum : int { HCCL_SUM = 0, HCCL_PROD = 1, HCCL_MAX = 2, HCCL_MIN = 3 };
enum : int {
    HCCL_INT8 = 0,
    HCCL_INT16 = 1,
    HCCL_INT32 = 2,
    HCCL_FP16 = 3,
    HCCL_FP32 = 4,
    HCCL_INT64 = 5,
    HCCL_UINT64 = 6,
    HCCL_UINT8 = 7,
    HCCL_UINT16 = 8,
    HCCL_UINT32 = 9,
    HCCL_FP64 = 10,
    HCCL_BFP16 = 11,
};

// What the ranks of a communicator agree on beforehand; the simulator writes a file's name into it.
struct HcclRootInfo {
    char name[4108];
};
enum : int { HCCL_SEND = 0, HCCL_RECV = 1 };
struct HcclSendRecvItem {
    int kind;
    void* buffer;
    uint64_t count;
    int type;
    uint32_t peer;
};

SIM_API HcclResult HcclGetRootInfo(HcclRootInfo* root);
SIM_API HcclResult HcclCommInitRootInfo(uint32_t ranks, const HcclRootInfo* root, uint32_t rank, void** communicator);
SIM_API HcclResult HcclCommInitRootInfoConfig(uint32_t ranks, const HcclRootInfo* root, uint32_t rank, void* config,
                                              void** communicator);
SIM_API HcclResult HcclCommDestroy(void* communicator);
SIM_API HcclResult HcclAllReduce(void* from, void* to, uint64_t count, int type, int operation, void* communicator,
                                 void* stream);
SIM_API HcclResult HcclReduce(void* from, void* to, uint64_t count, int type, int operation, uint32_t root,
                              void* communicator, void* stream);
SIM_API HcclResult HcclBroadcast(void* data, uint64_t count, int type, uint32_t root, void* communicator, void* stream);
SIM_API HcclResult HcclScatter(void* from, void* to, uint64_t count, int type, uint32_t root, void* communicator,
                               void* stream);
SIM_API HcclResult HcclAllGather(void* from, void* to, uint64_t count, int type, void* communicator, void* stream);
SIM_API HcclResult HcclReduceScatter(void* from, void* to, uint64_t count, int type, int operation, void* communicator,
                                     void* stream);
SIM_API HcclResult HcclAlltoAll(const void* from, uint64_t count, int type, const void* to, uint64_t to_count,
                                int to_type, void* communicator, void* stream);
SIM_API HcclResult HcclAlltoAllV(const void* from, const void* counts, const void* offsets, int type, const void* to,
                                 const void* to_counts, const void* to_offsets, int to_type, void* communicator,
                                 void* stream);
SIM_API HcclResult HcclBarrier(void* communicator, void* stream);
SIM_API HcclResult HcclSend(void* data, uint64_t count, int type, uint32_t to, void* communicator, void* stream);
SIM_API HcclResult HcclRecv(void* data, uint64_t count, int type, uint32_t from, void* communicator, void* stream);
SIM_API HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, void* communicator, void* stream);
