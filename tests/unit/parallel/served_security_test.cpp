// What ranks prove to servers that were not started with them.

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
using Kind = wire::Security::Kind;
using Variables = std::map<std::string, std::string>;

wire::Security given(const wire::Address& coordinator, const Variables& variables) {
  return security_of_servers(coordinator, wire::Secret::from_text(std::string(32, 'j'), "the job"),
                             [&](const std::string& name) -> std::optional<std::string> {
                               const auto found = variables.find(name);
                               if (found == variables.end()) return std::nullopt;
                               return found->second;
                             });
}

TEST(ServedSecurity, IsNothingOnThisHostAndTheJobsSecretElsewhere) {
  for (const char* here : {"tcp:127.0.0.1:29600", "tcp:localhost:29600", "unix:@params", "unix:/run/params"})
    EXPECT_EQ(given(here, {}).kind, Kind::kLocal) << here;
  for (const char* there :
       {"tcp:192.0.2.1:29600", "tcp:no.such.host.invalid:1", "etcd://127.0.0.1:2379/job"}) {
    EXPECT_EQ(given(there, {}).kind, Kind::kSecret) << there;
    EXPECT_EQ(given(there, {}).secret.reveal(), std::string(32, 'j'));
  }
  EXPECT_EQ(security_of_servers("tcp:192.0.2.1:1", {}, [](const auto&) { return std::nullopt; }).kind,
            Kind::kLocal);
}

TEST(ServedSecurity, IsWhatVariablesSayWhereverTheServersAre) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "secret";
  std::ofstream(file) << "a secret of the servers, long enough for anybody";
  ::chmod(file.c_str(), 0600);
  for (const char* address : {"tcp:127.0.0.1:29600", "tcp:192.0.2.1:29600"}) {
    const wire::Security secret = given(address, {{"TRIREME_PS_SECRET_FILE", file}});
    EXPECT_EQ(secret.kind, Kind::kSecret);
    EXPECT_EQ(secret.secret.reveal(), "a secret of the servers, long enough for anybody");
    const Variables tls = {{"TRIREME_PS_TLS_AUTHORITY", "a.pem"},
                           {"TRIREME_PS_TLS_CERTIFICATE", "worker.pem"},
                           {"TRIREME_PS_TLS_KEY", "worker.key"}};
    EXPECT_EQ(given(address, tls).kind, Kind::kTls);
    EXPECT_EQ(given(address, tls).tls.certificate, "worker.pem");
  }
}

TEST(ServedSecurity, NamesWhatIsMissingOrTooMuch) {
  Variables variables = {{"TRIREME_PS_TLS_AUTHORITY", "a.pem"}, {"TRIREME_PS_TLS_KEY", "worker.key"}};
  const auto ask = [&] { given("tcp:127.0.0.1:1", variables); };
  EXPECT_THAT(ask, ThrowsMessage<InvalidArgument>(HasSubstr("TRIREME_PS_TLS_CERTIFICATE is not set")));
  variables["TRIREME_PS_TLS_CERTIFICATE"] = "worker.pem";
  variables["TRIREME_PS_SECRET_FILE"] = "secret";
  EXPECT_THAT(ask, ThrowsMessage<InvalidArgument>(HasSubstr("servers have one proof")));
  variables = {{"TRIREME_PS_SECRET_FILE", "/no/such/secret"}};
  EXPECT_THAT(ask, ThrowsMessage<InvalidArgument>(HasSubstr("/no/such/secret")));
}

}  // namespace
}  // namespace trireme::parallel
