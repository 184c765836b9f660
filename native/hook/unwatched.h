// A process that has events and can make no ring leaves its name where the agent finds and counts it.
//
// The note is a symbolic link, which takes neither a descriptor nor bytes of a file: it can be made where a ring could
// not, for want of either. Its name is unwatched-<pid>-<start>-<errno>, its target the program's name. It lies in the
// session directory, or, where that is closed to a process that has changed its user, beside it as
// <session>.unwatched-...
//
// To a process in a chroot or with a /dev/shm of its own the session is not there at all, and one that was deleted is
// there for nobody. Its owner (msmemscope/launchers/out_of_sight.py) hears the note as a datagram to the abstract
// socket <session>/unwatched, whose name belongs to the network namespace: "<pid>-<start>-<errno>-<program>". A process
// with a network of its own, or another user, is not heard; a forked one then counts itself in the header of the ring
// of its parent, which it has inherited.
#pragma once

namespace memscope {

// False: nobody can find it. Keeps errno.
bool leave_note(const char* session_directory, int error) noexcept;

}  // namespace memscope
