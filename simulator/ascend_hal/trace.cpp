// Lines on stderr, one write each so that those of several processes do not mix; and the last error's text.
#include <sys/syscall.h>
#include <unistd.h>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include "knobs.h"
#include "npusim.h"

namespace {

constexpr size_t kMostLine = 1024;
thread_local char t_error[512];

}  // namespace

int npusim_trace_on(void) {
    static const bool on = npusim_knob(Knob::TRACE) != 0;
    return on;
}

void npusim_trace(const char* format, ...) {
    if (!npusim_trace_on()) return;
    char line[kMostLine];
    size_t length =
        static_cast<size_t>(snprintf(line, sizeof line, "[npusim %d] ", static_cast<int>(syscall(SYS_gettid))));
    va_list arguments;
    va_start(arguments, format);
    const int text = vsnprintf(line + length, sizeof line - length, format, arguments);
    va_end(arguments);
    if (text > 0) length += static_cast<size_t>(text);
    if (length > sizeof line - 1) length = sizeof line - 1;
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0) return;  // nobody left to read it
}

void npusim_set_error_message(const char* text) { snprintf(t_error, sizeof t_error, "%s", text); }
const char* npusim_error_message(void) { return t_error; }
