// Reading memory of this process that may not be there, or not be readable.
#pragma once

#include <cstddef>

namespace memscope {

// Copies `bytes` bytes of this process. False when they are not all readable.
bool copy_checked(void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace memscope
