// The ground the other tests of this directory stand on: the simulated driver hands out memory.
#include "cann.h"
#include "check.h"

CASE(the_driver_hands_out_device_memory) {
    void* block = nullptr;
    CHECK_EQUAL(halMemAlloc(&block, 1 << 20, MEMF_DEV | MEMF_HBM), 0);
    CHECK(block != nullptr);
    CHECK_EQUAL(halMemFree(block), 0);
}

int main(int argc, char** argv) { return check::run(argc, argv); }
