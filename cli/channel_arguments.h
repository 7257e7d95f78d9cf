#pragma once
// Options of every command that talks over channels: who may.

#include <CLI/CLI.hpp>
#include <string>

#include "trireme/wire/security.h"

namespace trireme::cli {

struct ChannelArguments {
  std::string secret_file;
  wire::TlsFiles tls;
  bool insecure = false, encrypt = false;
};

void declare_channels(CLI::App& app, ChannelArguments& arguments);

/// What was asked for; else the secret or key of TRIREME_PS_SECRET or TRIREME_PS_SECRET_FILE, else of
/// TRIREME_SECRET or TRIREME_SECRET_FILE; else this host alone. Throws InvalidArgument.
wire::Security security_of(const ChannelArguments& arguments);

}  // namespace trireme::cli
