// Authentication of ranks to servers that were started separately.

#include "trireme/parallel/served/served_security.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <map>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Proof = wire::Security::Kind;
using ProofVariables = std::map<std::string, std::string>;

wire::Security proof_given(const wire::Address& coordinator, const ProofVariables& variables) {
  return security_of_servers(coordinator, wire::Secret::from_text(std::string(32, 'j'), "the job"),
                             [&](const std::string& name) -> std::optional<std::string> {
                               const auto found = variables.find(name);
                               if (found == variables.end()) return std::nullopt;
                               return found->second;
                             });
}

TEST(ServedSecurity, IsAbsentLocallyAndJobSecretElsewhere) {
  for (const char* here : {"tcp:127.0.0.1:29600", "tcp:localhost:29600", "unix:@params", "unix:/run/params"})
    EXPECT_EQ(proof_given(here, {}).kind, Proof::kLocal) << here;
  for (const char* there :
       {"tcp:192.0.2.1:29600", "tcp:no.such.host.invalid:1", "etcd://127.0.0.1:2379/job"}) {
    EXPECT_EQ(proof_given(there, {}).kind, Proof::kSecret) << there;
    EXPECT_EQ(proof_given(there, {}).secret.reveal(), std::string(32, 'j'));
  }
  EXPECT_EQ(security_of_servers("tcp:192.0.2.1:1", {}, [](const auto&) { return std::nullopt; }).kind,
            Proof::kLocal);
}

TEST(ServedSecurity, FollowsVariablesForAnyServers) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "secret";
  std::ofstream(file) << "a secret of the servers, long enough for anybody";
  ::chmod(file.c_str(), 0600);
  for (const char* address : {"tcp:127.0.0.1:29600", "tcp:192.0.2.1:29600"}) {
    const wire::Security secret = proof_given(address, {{"TRIREME_PS_SECRET_FILE", file}});
    EXPECT_EQ(secret.kind, Proof::kSecret);
    EXPECT_EQ(secret.secret.reveal(), "a secret of the servers, long enough for anybody");
    EXPECT_FALSE(secret.encrypted);
    const wire::Security key = proof_given(
        address,
        {{"TRIREME_PS_SECRET", secret.secret.of_role("worker.1").reveal()}, {"TRIREME_ENCRYPT", "1"}});
    EXPECT_EQ(key.secret.role(), "worker.1");
    EXPECT_TRUE(key.encrypted);
    const ProofVariables tls = {{"TRIREME_PS_TLS_AUTHORITY", "a.pem"},
                                {"TRIREME_PS_TLS_CERTIFICATE", "worker.pem"},
                                {"TRIREME_PS_TLS_KEY", "worker.key"}};
    EXPECT_EQ(proof_given(address, tls).kind, Proof::kTls);
    EXPECT_EQ(proof_given(address, tls).tls.certificate, "worker.pem");
  }
}

TEST(ServedSecurity, ErrorNamesMissingOrConflictingVariables) {
  ProofVariables variables = {{"TRIREME_PS_TLS_AUTHORITY", "a.pem"}, {"TRIREME_PS_TLS_KEY", "worker.key"}};
  const auto ask = [&] { proof_given("tcp:127.0.0.1:1", variables); };
  EXPECT_THAT(ask, ThrowsMessage<InvalidArgument>(HasSubstr("TRIREME_PS_TLS_CERTIFICATE is not set")));
  variables["TRIREME_PS_TLS_CERTIFICATE"] = "worker.pem";
  variables["TRIREME_PS_SECRET_FILE"] = "secret";
  EXPECT_THAT(ask, ThrowsMessage<InvalidArgument>(HasSubstr("servers have one proof")));
  variables = {{"TRIREME_PS_SECRET", "a secret of the servers"}, {"TRIREME_ENCRYPT", "yes"}};
  EXPECT_THAT(ask, ThrowsMessage<InvalidArgument>(HasSubstr("TRIREME_ENCRYPT is 'yes'; expected 1")));
  variables = {{"TRIREME_PS_SECRET_FILE", "/no/such/secret"}};
  EXPECT_THAT(ask, ThrowsMessage<InvalidArgument>(HasSubstr("/no/such/secret")));
}

}  // namespace
}  // namespace trireme::parallel
