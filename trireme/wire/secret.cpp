#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/wire/security.h"

namespace trireme::wire {
namespace {

// OpenSSL frees its state in an atexit function. Static objects made before (a program's own context, with
// its threads) end after that function and still use it. The first call in a process disables it; the kernel
// frees the memory.
[[maybe_unused]] const int kIsKeptToTheEnd = ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

constexpr std::size_t kMinCharacters = 16;
constexpr const char* kHowToMakeOne = "(umask 077; head -c 32 /dev/urandom | base64 > FILE) makes one";
// A role's key file contains this prefix, ROLE.NAME, a colon and 64 digits.
constexpr std::string_view kKeyOfRole = "trireme-key:";
constexpr std::size_t kDigitsOfKey = 2 * sizeof(Digest);

std::string hexadecimal(const std::array<std::uint8_t, 32>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string result;
  for (const std::uint8_t byte : bytes) result += {kDigits[byte >> 4], kDigits[byte & 15]};
  return result;
}

}  // namespace

bool Secret::is_role(std::string_view word) {
  const auto dot = word.find('.');
  return dot != word.npos && dot > 0 && dot + 1 < word.size() &&
         std::ranges::all_of(word, [](char c) { return c >= ' ' && c <= '~'; });
}

Secret Secret::random() {
  Secret result;
  result.text_ = hexadecimal(random_nonce());
  return result;
}

Secret Secret::from_text(std::string_view text, const std::string& source) {
  Secret result;
  result.text_ = trim(text);
  require(result.text_.size() >= kMinCharacters, "the job's secret in ", source, " has ", result.text_.size(),
          " characters; expected at least ", kMinCharacters, ": ", kHowToMakeOne);
  if (!result.text_.starts_with(kKeyOfRole)) return result;
  const std::string rest = result.text_.substr(kKeyOfRole.size());
  result.role_ = rest.substr(0, rest.rfind(':'));
  const bool valid = is_role(result.role_) && rest.size() == result.role_.size() + 1 + kDigitsOfKey &&
                     rest.find_first_not_of("0123456789abcdef", result.role_.size() + 1) == rest.npos;
  require(valid, "the key of a role in ", source, " is damaged; expected ", kKeyOfRole,
          "ROLE.NAME:64 digits, as trireme ps key ROLE.NAME prints it");
  return result;
}

Secret Secret::from_file(const std::filesystem::path& path) {
  std::string content;
  try {
    content = read_file(path);
  } catch (const DataError& error) {
    throw InvalidArgument(text("the job's secret: ", error.what(), "; ", kHowToMakeOne));
  }
  require_owners_file(path, "the job's secret");
  return from_text(content, path.string());
}

Secret Secret::from_variables(
    const std::function<std::optional<std::string>(const std::string& name)>& lookup,
    const std::string& name) {
  const auto text = lookup(name);
  if (text && !text->empty()) return from_text(*text, name);
  const auto path = lookup(name + "_FILE");
  return path && !path->empty() ? from_file(*path) : Secret();
}

Secret Secret::of_servers(const std::function<std::optional<std::string>(const std::string& name)>& lookup) {
  Secret secret = from_variables(lookup, "TRIREME_PS_SECRET");
  return secret.empty() ? from_variables(lookup) : secret;
}

Secret Secret::of_role(const std::string& role_and_name) const {
  if (!role_.empty()) return *this;
  Secret key;
  key.role_ = role_and_name;
  key.text_ = std::string(kKeyOfRole) + role_and_name + ":" +
              hexadecimal(hmac_sha256(*this, {"trireme role ", role_and_name}));
  return key;
}

bool is_encrypted(const std::function<std::optional<std::string>(const std::string& name)>& lookup) {
  const std::string value = lookup("TRIREME_ENCRYPT").value_or("");
  require(value.empty() || value == "0" || value == "1", "TRIREME_ENCRYPT is '", value,
          "'; expected 1 to encrypt channels between hosts, or 0");
  return value == "1";
}

void require_owners_file(const std::filesystem::path& path, const std::string& what) {
  struct stat found {};
  require(::stat(path.c_str(), &found) == 0, what, " in ", path.string(), ": ", std::strerror(errno));
  require(found.st_uid == ::geteuid(), what, " in ", path.string(), " belongs to user ", found.st_uid,
          "; expected a file of this user, ", ::geteuid(), ": copy it (install -m 600 ", path.string(),
          " FILE), or chown ", ::geteuid(), " ", path.string());
  require((found.st_mode & 077) == 0, what, " in ", path.string(), " is open to other users: chmod 600 ",
          path.string());
}

Nonce random_nonce() {
  Nonce result;
  if (RAND_bytes(result.data(), static_cast<int>(result.size())) != 1) {
    throw InternalError("the system has no random numbers to give (RAND_bytes)");
  }
  return result;
}

Digest hmac_sha256(const Secret& secret, std::initializer_list<std::string_view> parts) {
  const auto* key_bytes = reinterpret_cast<const unsigned char*>(secret.reveal().data());
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      EVP_PKEY_new_raw_private_key(EVP_PKEY_HMAC, nullptr, key_bytes, secret.reveal().size()), EVP_PKEY_free);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  bool good = key && hash && EVP_DigestSignInit(hash.get(), nullptr, EVP_sha256(), nullptr, key.get()) == 1;
  for (const std::string_view part : parts)
    good = good && EVP_DigestSignUpdate(hash.get(), part.data(), part.size()) == 1;
  Digest result;
  std::size_t size = result.size();
  if (!good || EVP_DigestSignFinal(hash.get(), result.data(), &size) != 1 || size != result.size())
    throw InternalError("OpenSSL cannot compute HMAC-SHA256");
  return result;
}

bool equal(const Digest& one, const Digest& other) {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace trireme::wire
