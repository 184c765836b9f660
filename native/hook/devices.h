// Logical and physical device numbers of Ascend cards, mapped in one place.
//
// A process that sees only some cards (ASCEND_RT_VISIBLE_DEVICES=4,6) calls them 0 and 1; the driver calls them 4 and
// 6. A record's `device` is always physical, so that ranks can be compared and the same card is one card. What the
// process calls it can be had back from META "visible_devices", which is written once.
#pragma once

#include "record/record.h"

namespace memscope {

// The driver's number of the process's device `logical`. The variable is read at the first call; without it, or when
// it is malformed (report_lost says so), numbers stay as they are. One that it does not list stays as it is too.
i16 physical_device(i16 logical) noexcept;

// The variable's text once it was read and holds; else nullptr. The recorder writes it when a ring is opened.
const char* visible_devices() noexcept;

}  // namespace memscope
