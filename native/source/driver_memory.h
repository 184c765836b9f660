// What the Ascend driver has handed out and not taken back, for the sources that watch it (hal, acl): a release says
// neither size nor device, so both are kept here from the allocation on, with the live bytes of each device.
//
// Call inside a Guard and only when is_watching().
#pragma once

#include "hook/blocks.h"
#include "hook/live_table.h"

namespace memscope {

// What a pointer of the driver names. The four may be the same number without being the same thing.
enum class Named : u32 { BLOCK, HANDLE, REGISTERED, RESERVATION, MAPPING };

// After a successful call. `block` without `used`, which is the live bytes of its device afterwards.
void driver_gave(Named what, Block block) noexcept;

// Before the real call of a releasing function: afterwards the address may already be somebody else's. False: it was
// never seen here, and nothing is told; such releases are counted. What the device had then goes to `known`.
bool driver_takes_back(Named what, u64 ptr, const char* function, LiveBlock& known) noexcept;

// The driver refused the release that driver_takes_back() has told: the block is told again.
void driver_refused(const LiveBlock& known) noexcept;

// What the driver has under this name, without taking it out.
bool driver_has(Named what, u64 ptr, LiveBlock& known) noexcept;

u64 unknown_releases() noexcept;

}  // namespace memscope
