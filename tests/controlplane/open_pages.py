"""Pages that are about no tenant: anyone's, and those about oneself."""

from __future__ import annotations

ANYONE = {
    "login",
    "logout",
    "invitation",
    "entry",
    "sign-up",
    "sign-up-confirm",
    "mailbox",
    "account_login",
    "account_logout",
    "account_inactive",
    "account_signup",
    "account_confirm_login_code",
    "account_email_verification_sent",
    "account_confirm_email",
    "account_reset_password",
    "account_reset_password_done",
    "account_reset_password_from_key",
    "account_reset_password_from_key_done",
    "mfa_authenticate",
    "socialaccount_login_cancelled",
    "socialaccount_login_error",
    "socialaccount_signup",
    "openid_connect_login",
    "openid_connect_callback",
}
ONESELF = {
    "account_reauthenticate",
    "account_change_password",
    "account_set_password",
    "account_email",
    "mfa_index",
    "mfa_reauthenticate",
    "mfa_activate_totp",
    "mfa_deactivate_totp",
    "mfa_view_recovery_codes",
    "mfa_generate_recovery_codes",
    "mfa_download_recovery_codes",
    "socialaccount_connections",
}
