// The ring against its specification (native/record/ring.h).
#include "record/ring.h"

#include <cerrno>
#include "check.h"

using namespace memscope;

CASE(a_path_that_does_not_exist_is_refused) {
    Ring ring;
    CHECK_EQUAL(ring.open("/nonexistent/ring", false), ENOENT);
    CHECK(!ring.is_open());
}

int main(int argc, char** argv) { return check::run(argc, argv); }
