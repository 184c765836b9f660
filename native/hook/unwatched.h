// A process that has events and can make no ring leaves its name where the agent finds and counts it.
//
// The note is a symbolic link, which takes neither a descriptor nor bytes of a file: it can be made where a ring could
// not, for want of either. Its name is unwatched-<pid>-<start>-<errno>, its target the program's name. It lies in the
// session directory, or, where that is closed to a process that has changed its user, beside it as
// <session>.unwatched-...
#pragma once

namespace memscope {

// Does nothing when the session is gone. Keeps errno.
void leave_note(const char* session_directory, int error) noexcept;

}  // namespace memscope
