// The frameworks' memory pools, as they tell them through mstx.
//
// torch_npu and MindSpore call under their allocator's lock: nothing here blocks or calls back. Their calls:
//   ptaCaching        per malloc: heap{block's address, bytes reserved by the pool}, regions{block};
//                     per free: heap, regions unregistered by address
//   ptaWorkspace      heap at each growth; regions{address, bytes} at each use, over and over for one address, without
//                     an end between; unregistered when released
//   mindsporeMemPool  as ptaCaching, but the heap follows the regions: `total` of a record is the one before it
//   atb               heap{workspace} with a real handle; regions with real handles
#pragma once

#include "source/mstx_abi.h"
#include "source/mstx_domains.h"

namespace memscope::mstx {

void* register_heap(const Domain* domain, const HeapDescription* description) noexcept;
void unregister_heap(const Domain* domain, void* heap) noexcept;
void register_regions(const Domain* domain, const RegionsRegisterBatch* batch) noexcept;
void unregister_regions(const Domain* domain, const RegionsUnregisterBatch* batch) noexcept;

// Bytes that the pool has handed out on a physical device, or kUnknown when not every block was seen.
i64 used_bytes(Pool pool, i16 device) noexcept;

}  // namespace memscope::mstx

// Calls and blocks that were ignored because they made no sense.
extern "C" unsigned long long memscope_mstx_ignored();
