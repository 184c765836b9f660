// Elements and reductions of hccl's data types.
#pragma once

#include <cstddef>
#include <cstdint>

// Bytes of one element; 1 for an unknown type.
size_t element_size(int type);
// to[i] = to[i] (operation) from[i]
void reduce(void* to, const void* from, uint64_t count, int type, int operation);
