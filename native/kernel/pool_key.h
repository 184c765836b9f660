// Which pool on which device.
#pragma once

#include "record/record.h"

namespace memscope::kernel {

struct PoolKey {
    i16 device = 0;
    u8 device_type = 0, pool = 0;

    bool operator==(const PoolKey& other) const noexcept {
        return device == other.device && pool == other.pool && device_type == other.device_type;
    }

    bool on_card() const noexcept {
        return device_type != static_cast<u8>(DeviceType::CPU) && device_type != static_cast<u8>(DeviceType::NONE);
    }

    // Memory of a card that a driver gave out: not host memory that it has locked.
    bool of_driver() const noexcept {
        return on_card() && (pool == static_cast<u8>(Pool::HAL) || pool == static_cast<u8>(Pool::CUDA_DRIVER));
    }

    // Torch's of a card, which gives a block back to the stream that it was allocated for.
    bool has_streams() const noexcept {
        return on_card() && (pool == static_cast<u8>(Pool::PTA) || pool == static_cast<u8>(Pool::CUDA));
    }
};

}  // namespace memscope::kernel
