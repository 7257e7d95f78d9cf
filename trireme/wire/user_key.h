#pragma once
// The key by which processes of one user know each other where no other proof is given and the kernel does
// not say whose a peer is: on TCP of the loopback. Thread-safe.

#include "trireme/wire/secret.h"

namespace trireme::wire {

/// What the file "user.key" holds: 256 bits, made by the first process that asks. Its folder is the first of
/// $XDG_STATE_HOME/trireme, $HOME/.local/state/trireme, the same in the home folder of the user's entry in
/// passwd, and /tmp/trireme-UID, that this user owns or may make. Folder and file belong to the effective
/// user, are closed to group and others and are no symbolic links. Throws InvalidArgument, with what to do,
/// where that does not hold. Costs some system calls; processes that run long ask again for each peer, so
/// that a file that was removed and made again is known.
Secret user_key();

}  // namespace trireme::wire
