#pragma once
// Authentication of ranks at servers that were not started with them. Pure but for the files it names.

#include <functional>
#include <optional>
#include <string>

#include "trireme/wire/node.h"
#include "trireme/wire/security.h"

namespace trireme::parallel {

/// Security by TRIREME_PS_SECRET or TRIREME_PS_SECRET_FILE, or by TRIREME_PS_TLS_AUTHORITY,
/// TRIREME_PS_TLS_CERTIFICATE and TRIREME_PS_TLS_KEY. Without them: none, where only this host reaches the
/// coordinator, else the secret of the job. Encrypted as is_encrypted() decides. `variable` gives the value
/// of a variable, or nothing. Throws InvalidArgument for some of the three without the others, for both ways,
/// and for a file that holds no secret.
wire::Security security_of_servers(
    const wire::Address& coordinator, const wire::Secret& of_job,
    const std::function<std::optional<std::string>(const std::string& name)>& variable);

}  // namespace trireme::parallel
