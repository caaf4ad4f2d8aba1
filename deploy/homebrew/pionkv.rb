# A draft for a tap of your own; it was never run. There is no release yet, so it builds from a git checkout:
#     brew tap-new you/pionkv && cp deploy/homebrew/pionkv.rb "$(brew --repository you/pionkv)/Formula/"
#     HOMEBREW_PIONKV_SOURCE="file://$PWD" brew install --HEAD you/pionkv/pionkv && brew services start pionkv
class Pionkv < Formula
  include Language::Python::Virtualenv

  desc "Networked store for the keys and values of language-model prefixes"
  license "Apache-2.0"
  head ENV.fetch("HOMEBREW_PIONKV_SOURCE", "file://#{Dir.home}/pionkv"), using: :git, branch: "main"

  depends_on "python@3.12"

  # Wheels come from the package index while it installs: numba's own needs are many.
  def install
    virtualenv_create(libexec, "python3.12", without_pip: false)
    system libexec/"bin/python", "-m", "pip", "install", "#{buildpath}[metal]"
    bin.install_symlink libexec/"bin/pionkv"
    (var/"pionkv").mkpath
  end

  service do
    run [opt_bin/"pionkv", "serve", "--data-dir", var/"pionkv", "--max-bytes", "8gb"]
    keep_alive crashed: true
    log_path var/"log/pionkv.log"
    error_log_path var/"log/pionkv.log"
  end

  test do
    assert_match version.to_s.start_with?("HEAD") ? "pionkv" : version.to_s, shell_output("#{bin}/pionkv --version")
  end
end
