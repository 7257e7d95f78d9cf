#pragma once
// A test certificate authority and its certificates, as PEM files like those of the openssl program. Programs
// that include this header link OpenSSL's libcrypto.

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

#include "trireme/wire/security.h"

namespace trireme::test {

class Authority {
 public:
  Authority(std::string name, std::filesystem::path folder)
      : folder_(std::move(folder)), name_(std::move(name)), key_(new_key()) {
    certificate_ = certificate_of(key_.get(), name_, "CA:TRUE", "", 3600);
    write(name_ + ".pem", [&](FILE* file) { return PEM_write_X509(file, certificate_.get()); });
  }
  /// Issues a certificate with `san` as its subject alternative name. With a negative validity it has
  /// expired.
  wire::TlsFiles issue(const std::string& who, const std::string& san, long valid_s = 3600) {
    const Key key = new_key();
    const Certificate certificate = certificate_of(key.get(), who, "CA:FALSE", san, valid_s);
    const std::string base = name_ + "-" + who;
    write(base + ".pem", [&](FILE* file) { return PEM_write_X509(file, certificate.get()); });
    write(base + ".key", [&](FILE* file) {
      return PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
    ::chmod((folder_ / (base + ".key")).c_str(), 0600);
    return {.authority = folder_ / (name_ + ".pem"),
            .certificate = folder_ / (base + ".pem"),
            .key = folder_ / (base + ".key")};
  }

 private:
  using Key = std::shared_ptr<EVP_PKEY>;
  using Certificate = std::shared_ptr<X509>;
  static Key new_key() { return {EVP_EC_gen("P-256"), EVP_PKEY_free}; }

  Certificate certificate_of(EVP_PKEY* key, const std::string& who, const std::string& constraints,
                             const std::string& san, long valid_s) {
    Certificate made(X509_new(), X509_free);
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), ++last_serial_);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -7200);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), valid_s);
    X509_set_pubkey(made.get(), key);
    X509_NAME* name = X509_get_subject_name(made.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(who.c_str()),
                               -1, -1, 0);
    X509* issuer = certificate_ ? certificate_.get() : made.get();
    X509_set_issuer_name(made.get(), X509_get_subject_name(issuer));
    add(made.get(), NID_basic_constraints, constraints);
    if (!san.empty()) add(made.get(), NID_subject_alt_name, san);
    check(X509_sign(made.get(), key_.get(), EVP_sha256()) > 0, who);
    return made;
  }
  static void add(X509* to, int what, const std::string& value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, what, value.c_str());
    check(extension != nullptr, value);
    X509_add_ext(to, extension, -1);
    X509_EXTENSION_free(extension);
  }
  static void check(bool good, const std::string& what) {
    if (!good) throw std::runtime_error("no certificate: " + what);
  }
  template <class Write>
  void write(const std::string& name, const Write& write_to) {
    FILE* file = std::fopen((folder_ / name).c_str(), "w");
    check(file != nullptr && write_to(file) == 1, name);
    std::fclose(file);
  }

  const std::filesystem::path folder_;
  const std::string name_;
  const Key key_;
  Certificate certificate_;
  long last_serial_ = 0;
};

}  // namespace trireme::test
