#include "cli/channel_arguments.h"

#include <cstdlib>
#include <optional>

#include "trireme/base/error.h"

namespace trireme::cli {

void declare_channels(CLI::App& app, ChannelArguments& arguments) {
  app.add_option("--secret-file", arguments.secret_file,
                 "The cluster's secret, or the key of a role (trireme ps key), 0600")
      ->type_name("F");
  app.add_option("--tls-authority", arguments.tls.authority, "Certificate of the cluster's authority (PEM)")
      ->type_name("F");
  app.add_option("--tls-certificate", arguments.tls.certificate,
                 "Certificate of this process (PEM): ROLE.NAME")
      ->type_name("F");
  app.add_option("--tls-key", arguments.tls.key, "Its key (PEM, 0600)")->type_name("F");
  app.add_flag("--encrypt", arguments.encrypt,
               "With a secret: TLS 1.3 under it over TCP, for all of the cluster (also TRIREME_ENCRYPT=1)");
  app.add_flag("--insecure", arguments.insecure,
               "No authentication: only in a network without other senders");
}

wire::Security security_of(const ChannelArguments& arguments) {
  const wire::TlsFiles& tls = arguments.tls;
  const int num_tls = !tls.authority.empty() + !tls.certificate.empty() + !tls.key.empty();
  require(num_tls == 0 || num_tls == 3,
          "TLS takes --tls-authority, --tls-certificate and --tls-key together, found ", num_tls, " of them");
  const int num_ways = (num_tls > 0) + !arguments.secret_file.empty() + arguments.insecure;
  require(num_ways <= 1, "take one of --secret-file, --tls-... and --insecure");
  if (num_tls > 0) return wire::Security::with_tls(tls);
  const auto variable = [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  const bool encrypt = arguments.encrypt || wire::is_encrypted(variable);
  require(!encrypt || !arguments.insecure, "take one of --encrypt (also TRIREME_ENCRYPT=1) and --insecure");
  if (arguments.insecure) return wire::Security::none();
  wire::Secret secret;
  if (!arguments.secret_file.empty()) secret = wire::Secret::from_file(arguments.secret_file);
  if (secret.empty()) secret = wire::Secret::of_servers(variable);
  require(!secret.empty() || !arguments.encrypt,
          "--encrypt takes a secret: --secret-file F, or certificates");
  if (secret.empty()) return {};
  return wire::Security::with_secret(secret, encrypt);
}

}  // namespace trireme::cli
